# SPDX-License-Identifier: Apache-2.0
"""Models with random weights and the layer shapes of published models; the card decides how many layers they have.

Fragmentation comes from the sizes of tensors and the order in which they live and die. Both are those of the published model
when a layer has its shape, however many layers there are; the figures say how many there were.
"""

import dataclasses

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str  # which of transformers' configurations
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int  # inner size of a dense layer, or of one expert
    vocabulary: int
    experts: int = 0
    chosen: int = 0  # experts a token goes through
    head: int = 0  # size of a head; 0: hidden / heads

    @property
    def longest(self):
        """Tokens in the longest sequence; for each there is a weight where positions are learned."""
        return 8192 if self.kind in ("gpt2", "opt") else 131072

    def parameters_of_layer(self):
        head = self.head or self.hidden // self.heads
        attention = self.hidden * head * (2 * self.heads + 2 * self.kv_heads)
        matrices = 2 if self.kind in ("gpt2", "opt", "gpt_neox") else 3
        return attention + matrices * self.hidden * self.inner * max(self.experts, 1)

    def parameters(self, layers):
        tables = 1 if self.kind in ("gpt2", "opt") else 2  # these use one table for input and output
        return layers * self.parameters_of_layer() + tables * self.vocabulary * self.hidden

    def activation_bytes(self, layers, recompute):
        """An estimate of the bytes for one token that a step of a model in bfloat16 keeps for its backward pass."""
        inner = self.inner * max(self.chosen, 1)
        layer = 2 * (14 * self.hidden + 5 * inner)
        kept = {"none": layers * layer, "selective": layers * (layer + 2 * self.hidden) // 2,
                "full": layers * 2 * self.hidden + layer}[recompute]
        return kept + 12 * self.vocabulary


SHAPES = {
    "llama-3.1-8b": Shape("llama", 4096, 32, 32, 8, 14336, 128256),
    "qwen3-30b-a3b": Shape("qwen3_moe", 2048, 48, 32, 4, 768, 151936, experts=128, chosen=8, head=128),
    "mixtral-8x7b": Shape("mixtral", 4096, 32, 32, 8, 14336, 32000, experts=8, chosen=2),
    "gpt2-xl": Shape("gpt2", 1600, 48, 25, 25, 6400, 50257),
    # Models of STAlloc's evaluation (EuroSys'26).
    "gpt2-345m": Shape("gpt2", 1024, 24, 16, 16, 4096, 50257),
    "llama2-7b": Shape("llama", 4096, 32, 32, 32, 11008, 32000),
    "qwen2.5-14b": Shape("llama", 5120, 48, 40, 8, 13824, 152064),
    "qwen1.5-moe-a2.7b": Shape("qwen3_moe", 2048, 24, 16, 16, 1408, 151936, experts=60, chosen=4),
    # Models of GMLake's evaluation (ASPLOS'24).
    "opt-1.3b": Shape("opt", 2048, 24, 32, 32, 8192, 50272),
    "opt-13b": Shape("opt", 5120, 40, 40, 40, 20480, 50272),
    "gpt-neox-20b": Shape("gpt_neox", 6144, 44, 64, 64, 24576, 50432),
    # Small models, also for trying programs out.
    "llama-1b": Shape("llama", 2048, 16, 16, 16, 5632, 32000),
    "tiny": Shape("llama", 64, 2, 4, 2, 128, 256),
    "tiny-moe": Shape("qwen3_moe", 64, 2, 4, 2, 32, 256, experts=8, chosen=2),
}


def layers_that_fit(shape, state_bytes_of_parameter, budget):
    """How many layers leave room for activations in `budget` bytes; 0: not even one layer does.

    Weights and the optimizer's states take at most 0.55 of the budget, or 0.75 when there is only one layer.
    """
    room = 0.55 * budget - state_bytes_of_parameter * shape.parameters(0)
    layers = min(shape.layers, int(room // (state_bytes_of_parameter * shape.parameters_of_layer())))
    return layers if layers > 0 else int(state_bytes_of_parameter * shape.parameters(1) <= 0.75 * budget)


def make_config(shape, layers, longest, experts_by):
    """The configuration for transformers. `longest`: tokens in a sequence; `experts_by`: eager or grouped_mm."""
    import transformers

    if shape.kind == "gpt2":
        return transformers.GPT2Config(n_embd=shape.hidden, n_layer=layers, n_head=shape.heads, n_inner=shape.inner,
                                       vocab_size=shape.vocabulary, n_positions=longest, use_cache=False, attn_pdrop=0.0,
                                       embd_pdrop=0.0, resid_pdrop=0.0)
    if shape.kind == "opt":
        return transformers.OPTConfig(hidden_size=shape.hidden, num_hidden_layers=layers, num_attention_heads=shape.heads,
                                      ffn_dim=shape.inner, vocab_size=shape.vocabulary, word_embed_proj_dim=shape.hidden,
                                      max_position_embeddings=longest, use_cache=False, dropout=0.0)
    common = dict(hidden_size=shape.hidden, num_hidden_layers=layers, num_attention_heads=shape.heads,
                  vocab_size=shape.vocabulary, max_position_embeddings=longest, use_cache=False)
    if shape.kind == "gpt_neox":
        return transformers.GPTNeoXConfig(intermediate_size=shape.inner, **common)
    common["num_key_value_heads"] = shape.kv_heads
    if shape.head:
        common["head_dim"] = shape.head
    if shape.kind == "llama":
        return transformers.LlamaConfig(intermediate_size=shape.inner, **common)
    experts = dict(num_experts_per_tok=shape.chosen, experts_implementation=experts_by, output_router_logits=False)
    if shape.kind == "mixtral":
        return transformers.MixtralConfig(intermediate_size=shape.inner, num_local_experts=shape.experts,
                                          sliding_window=None, **experts, **common)
    return transformers.Qwen3MoeConfig(intermediate_size=4 * shape.inner, moe_intermediate_size=shape.inner,
                                       num_experts=shape.experts, decoder_sparse_step=1, mlp_only_layers=[], **experts,
                                       **common)


def make_model(torch, config, device):
    """A model with random weights in bfloat16, made on the device."""
    import transformers

    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
