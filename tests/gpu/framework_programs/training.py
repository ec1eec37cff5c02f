# SPDX-License-Identifier: Apache-2.0
"""Programs of libraries that train PyTorch's models."""

import tempfile

from framework_programs import DEVICE, ON_CPU, digest, item, job_of_one, program, seeded_torch, size


def perceptron(torch, width, depth):
    return torch.nn.Sequential(*(part for _ in range(depth) for part in (
        torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width), torch.nn.LayerNorm(width))))


@program("deepspeed-zero3", "deepspeed", arguments=(3,))
@program("deepspeed-zero2-offload", "deepspeed", arguments=(2, True))
@program("deepspeed-zero2", "deepspeed", arguments=(2,))
@program("deepspeed-zero1", "deepspeed", arguments=(1,))
def deepspeed_program(stage, offload=False):
    """DeepSpeed's engine with one process: its flat buffers, its buckets and, in stage 3, the parameters that it gathers."""
    torch = seeded_torch()
    with job_of_one():
        import deepspeed

        width = size(2048, 32)
        model = perceptron(torch, width, 4)
        zero = {"stage": stage, "reduce_bucket_size": size(20_000_000), "allgather_bucket_size": size(20_000_000),
                "stage3_prefetch_bucket_size": size(10_000_000), "stage3_param_persistence_threshold": 5000,
                "stage3_max_live_parameters": size(40_000_000), "overlap_comm": not ON_CPU}
        if offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": not ON_CPU}
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False), config={
                "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
                "bf16": {"enabled": True}, "zero_optimization": zero, "zero_force_ds_cpu_optimizer": False,
                "zero_allow_untested_optimizer": True})
        numbers = []
        for step in range(16):
            batch = torch.randn(512 + 384 * (step % 3), width, device=DEVICE, dtype=torch.bfloat16)
            loss = (engine(batch) - batch).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            numbers.append(item(loss))
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, tag="one")
            engine.load_checkpoint(folder, tag="one")
        batch = torch.ones(100, width, device=DEVICE, dtype=torch.bfloat16)
        numbers.append(item(engine(batch).float().pow(2).mean()))
        engine.destroy()
    return numbers


@program("lightning", "pytorch_lightning")
def lightning_program():
    """Lightning's Trainer: mixed precision, accumulated gradients, validation, and checkpoints, of which it loads the best."""
    torch = seeded_torch()
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    lightning.seed_everything(7, workers=True, verbose=False)
    width = size(1024, 32)
    numbers = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = perceptron(torch, width, 4)

        def loss(self, batch):
            return (self.layers(batch[0]) - batch[0]).float().pow(2).mean()

        def training_step(self, batch, _):
            loss = self.loss(batch)
            numbers.append(item(loss))
            return loss

        def validation_step(self, batch, _):
            self.log("validation", self.loss(batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]

    def loader(rows, batch):
        data = torch.utils.data.TensorDataset(torch.randn(rows, width))
        return torch.utils.data.DataLoader(data, batch_size=batch, num_workers=2, pin_memory=not ON_CPU)

    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(folder, monitor="validation", save_top_k=1)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu" if ON_CPU else "gpu", devices=1, precision="bf16-mixed", logger=False,
            enable_progress_bar=False, enable_model_summary=False, deterministic="warn", accumulate_grad_batches=2,
            gradient_clip_val=1.0, default_root_dir=folder, callbacks=[keep])
        trainer.fit(Model(), loader(size(9000, 300), size(1024, 64)), loader(size(5000, 100), size(2048, 64)))
        best = trainer.validate(ckpt_path="best", verbose=False, dataloaders=loader(size(3000, 100), size(700, 64)))
    return numbers + [float(best[0]["validation"])]


@program("accelerate-fsdp", "accelerate", arguments=(True,))
@program("accelerate", "accelerate", arguments=(False,))
def accelerate_program(sharded):
    """Accelerate's loop with mixed precision and accumulated gradients: one process plain, or one process of FSDP."""
    torch = seeded_torch()
    import contextlib

    with job_of_one() if sharded else contextlib.nullcontext():
        from accelerate import Accelerator, FullyShardedDataParallelPlugin

        width = size(2048, 32)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["TransformerEncoderLayer"], reshard_after_forward=True) if sharded else None
        accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, fsdp_plugin=plugin, cpu=ON_CPU)
        layer = torch.nn.TransformerEncoderLayer(width, 16, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        data = torch.utils.data.TensorDataset(torch.randn(size(100, 20), size(256, 16), width))
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=1e-4),
            torch.utils.data.DataLoader(data, batch_size=6, pin_memory=not ON_CPU))
        numbers = []
        for step, (batch,) in enumerate(loader):
            batch = batch[:, : batch.shape[1] - 16 * (step % 4) * (not ON_CPU)]
            with accelerator.accumulate(model):
                loss = (model(batch) - batch).float().pow(2).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            numbers.append(item(accelerator.gather(loss.detach())))
        state = accelerator.get_state_dict(model)
        numbers.append(sum(item(tensor.float().abs()) for tensor in state.values()))
    return numbers


@program("bitsandbytes-paged", "bitsandbytes", arguments=("PagedAdamW8bit",))
@program("bitsandbytes-adam8bit", "bitsandbytes", arguments=("AdamW8bit",))
def bitsandbytes_program(optimizer):
    """Optimizers with states of 8 bits, in the device's memory or in CUDA's managed memory."""
    torch = seeded_torch()
    import bitsandbytes

    width = size(2048, 64)
    model = perceptron(torch, width, 4).to(DEVICE)
    optimizer = getattr(bitsandbytes.optim, optimizer)(model.parameters(), lr=1e-4)
    numbers = []
    for step in range(12):
        batch = torch.randn(512 + 384 * (step % 3), width, device=DEVICE)
        loss = (model(batch) - batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(item(loss))
    return numbers + [digest(model)]


@program("torchao", "torchao")
def torchao_program():
    """Training with an 8-bit optimizer whose steps PyTorch compiles, then weights of 8 bits."""
    torch = seeded_torch()
    from torchao.optim import AdamW8bit
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    width = size(2048, 128)
    model = torch.nn.Sequential(*(part for _ in range(3) for part in (torch.nn.Linear(width, width), torch.nn.GELU())))
    model = model.to(DEVICE).bfloat16()
    optimizer = AdamW8bit(model.parameters(), lr=1e-4)
    numbers = []
    for step in range(8):
        batch = torch.randn(512 + 384 * (step % 3), width, device=DEVICE, dtype=torch.bfloat16)
        loss = (model(batch) - batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(item(loss))
    quantize_(model, Int8WeightOnlyConfig())
    with torch.no_grad():
        for rows in (100, 3000, 900):
            numbers.append(item(model(torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)).float().abs().mean()))
    return numbers


@program("torchvision", "torchvision", "torchmetrics")
def torchvision_program():
    """A ResNet trained at several resolutions, with TorchMetrics on the device, then a detector on images of all sizes."""
    torch = seeded_torch()
    import torchmetrics
    import torchvision

    torch.backends.cudnn.benchmark = False
    model = torchvision.models.resnet50(num_classes=20).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scores = torchmetrics.MetricCollection([torchmetrics.Accuracy("multiclass", num_classes=20),
                                            torchmetrics.AUROC("multiclass", num_classes=20)]).to(DEVICE)
    numbers = []
    for step in range(size(12, 2)):
        images = torch.randn(size(24, 4), 3, *(2 * [size(128 + 32 * (step % 4), 64)])).to(DEVICE)
        classes = torch.arange(len(images), device=DEVICE) % 20
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            answers = model(images.contiguous(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(answers.float(), classes)
        loss.backward()
        optimizer.step()
        scores.update(answers.detach().float().softmax(-1), classes)
        numbers.append(item(loss))
    numbers += [item(value) for value in scores.compute().values()]
    detector = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5,
                                                                     min_size=size(400, 64), max_size=size(700, 100))
    detector = detector.to(DEVICE).eval()
    with torch.no_grad():
        for count in (1, 3, 2):
            found = detector([torch.rand(3, size(300 + 70 * at, 64), size(500 - 60 * at, 80)).to(DEVICE)
                              for at in range(count)])
            numbers += [item(one["boxes"]) + item(one["scores"]) for one in found]
    return numbers
