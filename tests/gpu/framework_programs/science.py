# SPDX-License-Identifier: Apache-2.0
"""Programs of libraries for science: processes, graphs, equations and samplers."""

from framework_programs import DEVICE, digest, item, program, seeded_torch, size


@program("numpyro", "numpyro", "jax")
def numpyro_program():
    """A hierarchical regression, sampled by NUTS in JAX."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    keys = jax.random.split(jax.random.key(2), 4)
    rows, columns = size(400_000, 2000), 40
    x = jax.random.normal(keys[0], (rows, columns))
    y = x @ jax.random.normal(keys[1], (columns,)) + jax.random.normal(keys[2], (rows,))

    def model(x, y):
        spread = numpyro.sample("spread", distributions.HalfNormal(1.0))
        with numpyro.plate("columns", columns):
            weights = numpyro.sample("weights", distributions.Normal(0.0, spread))
        noise = numpyro.sample("noise", distributions.HalfNormal(1.0))
        numpyro.sample("y", distributions.Normal(x @ weights, noise), obs=y)

    sampler = MCMC(NUTS(model, max_tree_depth=5), num_warmup=40, num_samples=40, progress_bar=False)
    sampler.run(keys[3], x, y)
    samples = sampler.get_samples()
    return [float(jnp.sum(samples[name])) for name in ("spread", "weights", "noise")]


@program("gpytorch", "gpytorch")
def gpytorch_program():
    """An exact Gaussian process that is fitted and asked, with cuSOLVER's and cuBLAS's own memory."""
    torch = seeded_torch()
    import gpytorch

    rows = size(6000, 200)
    x = torch.rand(rows, 8, device=DEVICE)
    y = torch.sin(x.sum(1) * 3) + 0.1 * torch.randn(rows, device=DEVICE)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=8))

        def forward(self, points):
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    model = Model(likelihood).to(DEVICE).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    numbers = []
    with gpytorch.settings.max_cholesky_size(rows):
        for _ in range(10):
            optimizer.zero_grad()
            loss = -objective(model(x), y)
            loss.backward()
            optimizer.step()
            numbers.append(item(loss))
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for points in (100, 900, 300):
                answer = likelihood(model(torch.rand(points, 8, device=DEVICE)))
                numbers += [item(answer.mean), item(answer.variance)]
    return numbers


@program("botorch", "botorch")
def botorch_program():
    """Bayesian optimization: a model is fitted again after each point, and the acquisition has many restarts."""
    torch = seeded_torch()
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import ExactMarginalLogLikelihood

    def measure(points):
        return -(points - 0.4).pow(2).sum(-1, keepdim=True) + torch.cos(9 * points).sum(-1, keepdim=True) / 9

    points = torch.rand(60, 6, dtype=torch.float64, device=DEVICE)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=DEVICE).expand(2, 6)
    numbers = []
    for _ in range(2):
        values = measure(points)
        model = SingleTaskGP(points, values)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 20}})
        sampler = SobolQMCNormalSampler(torch.Size([size(512, 16)]), seed=3)
        acquisition = qLogExpectedImprovement(model, best_f=values.max(), sampler=sampler)
        found, gain = optimize_acqf(acquisition, bounds, q=3, num_restarts=6, raw_samples=size(512, 16),
                                    options={"maxiter": 10, "seed": 4})
        points = torch.cat([points, found])
        numbers += [item(found), item(gain)]
    return numbers


@program("torchdiffeq", "torchdiffeq")
def torchdiffeq_program():
    """A neural differential equation, solved with adaptive steps and differentiated by its adjoint."""
    torch = seeded_torch()
    from torchdiffeq import odeint, odeint_adjoint

    width = size(1024, 16)
    field = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width)).to(DEVICE)

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.field = field

        def forward(self, time, state):
            return self.field(state) - 0.1 * time * state

    model = Field()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times = torch.linspace(0, 1, 5, device=DEVICE)
    numbers = []
    for turn, solve in enumerate((odeint_adjoint, odeint) * 4):
        optimizer.zero_grad()
        loss = solve(model, torch.randn(256 + 512 * (turn % 4), width, device=DEVICE), times, method="dopri5",
                     rtol=1e-3, atol=1e-3)[-1].pow(2).mean()
        loss.backward()
        optimizer.step()
        numbers.append(item(loss))
    return numbers + [digest(model)]


@program("torch-geometric", "torch_geometric")
def geometric_program():
    """A network on batches of random graphs, no two of one size."""
    torch = seeded_torch()
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

    generator = torch.Generator().manual_seed(9)

    def graph():
        nodes = int(torch.randint(size(200, 20), size(4000, 60), (), generator=generator))
        return Data(x=torch.randn(nodes, 64, generator=generator), y=torch.randn(1, generator=generator),
                    edge_index=torch.randint(nodes, (2, nodes * 8), generator=generator))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([GCNConv(64, 256), GATConv(256, 64, heads=4), SAGEConv(256, 256)])
            self.last = torch.nn.Linear(256, 1)

        def forward(self, batch):
            x = batch.x
            for layer in self.layers:
                x = layer(x, batch.edge_index).relu()
            return self.last(global_mean_pool(x, batch.batch)).squeeze(-1)

    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = []
    for _ in range(12):
        batch = Batch.from_data_list([graph() for _ in range(8)]).to(DEVICE)
        optimizer.zero_grad()
        loss = (model(batch) - batch.y).pow(2).mean()
        loss.backward()
        optimizer.step()
        numbers.append(item(loss))
    return numbers + [digest(model)]
