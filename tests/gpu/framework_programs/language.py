# SPDX-License-Identifier: Apache-2.0
"""Programs of libraries for language models. The models are small and random; nothing is loaded from a network."""

import tempfile

from framework_programs import DEVICE, ON_CPU, NotHere, digest, item, program, seeded_torch, size

WORDS = 8000


def llama(layers=4, **settings):
    from transformers import LlamaConfig, LlamaForCausalLM

    width = size(1024, 64)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=size(layers, 2),
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, **settings))


def word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(4, WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   unk_token="<unk>", model_max_length=2048)


def sentences(count, shortest, longest, seed):
    import numpy

    random = numpy.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in random.integers(4, WORDS, random.integers(shortest, longest)))
            for _ in range(count)]


def token_batches(torch, steps, rows=6, shortest=128, unit=96):
    generator = torch.Generator().manual_seed(12)
    for step in range(steps):
        yield torch.randint(4, WORDS, (rows - step % 3, size(shortest + unit * (step % 5))), generator=generator).to(DEVICE)


def train(torch, model, optimizer, steps=12):
    losses = []
    for tokens in token_batches(torch, steps):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(item(loss))
    return losses


def trainer_settings(folder, **more):
    return dict(output_dir=folder, report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, seed=7,
                use_cpu=ON_CPU, bf16=True, learning_rate=1e-4, dataloader_pin_memory=not ON_CPU, **more)


@program("transformers-trainer", "transformers", "accelerate", "peft")
def trainer_program():
    """Transformers' Trainer on an adapter of PEFT, with recomputation, accumulated gradients and evaluations between."""
    seeded_torch()
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    tokenizer = word_tokenizer()

    def tokens(count, seed):
        return [tokenizer(text, return_token_type_ids=False) for text in sentences(count, 20, size(600, 60), seed)]

    model = get_peft_model(llama(8), LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.05, task_type="CAUSAL_LM"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model, TrainingArguments(**trainer_settings(
                folder, max_steps=10, per_device_train_batch_size=4, gradient_accumulation_steps=2, eval_strategy="steps",
                eval_steps=4, per_device_eval_batch_size=6, gradient_checkpointing=True)),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            train_dataset=tokens(size(96, 40), 1), eval_dataset=tokens(size(24, 8), 2))
        trainer.train()
    losses = [float(one[name]) for one in trainer.state.log_history for name in ("loss", "eval_loss") if name in one]
    return losses + [digest(model)]


@program("transformers-generate", "transformers")
def generate_program():
    """Answers to prompts of many lengths with a cache that grows, sampled and by beams."""
    torch = seeded_torch()
    model = llama(8).to(DEVICE).to(torch.bfloat16).eval()
    numbers = []
    for number, prompts in enumerate(token_batches(torch, size(8, 2), rows=8, shortest=40, unit=150)):
        ways = dict(do_sample=True, top_k=50) if number % 2 else dict(do_sample=False, num_beams=3)
        found = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=size(64), **ways)
        numbers += [found.shape[1], int(found.sum())]
    return numbers


@program("transformers-static", "transformers")
def static_cache_program():
    """A static cache of keys and values, with which Transformers compiles the decoding into CUDA graphs."""
    torch = seeded_torch()
    model = llama(3).to(DEVICE).to(torch.bfloat16).eval()
    numbers = []
    for prompts in token_batches(torch, 3, rows=4, shortest=64, unit=0):
        found = model.generate(prompts[:2], attention_mask=torch.ones_like(prompts[:2]), max_new_tokens=size(48, 4),
                               do_sample=False, cache_implementation="static")
        numbers += [found.shape[1], int(found.sum())]
    return numbers


# Of eight runs alone on an H100 one differed from the others, by 2.5e-4 from the fifth step on.
@program("qlora", "bitsandbytes", "transformers", "peft", tolerance=0.001)
def qlora_program():
    """The recipe of QLoRA: weights of 4 bits, an adapter, recomputation, and a paged optimizer."""
    torch = seeded_torch()
    import bitsandbytes
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    with tempfile.TemporaryDirectory() as folder:
        llama(8).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, device_map={"": 0 if not ON_CPU else "cpu"},
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16))
    model = get_peft_model(prepare_model_for_kbit_training(model),
                           LoraConfig(r=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = train(torch, model, bitsandbytes.optim.PagedAdamW8bit(trained, lr=1e-4), size(12, 3))
    return losses + [item(parameter.abs().sum()) for parameter in trained[:4]]


@program("liger", "liger_kernel", "transformers")
def liger_program():
    """Liger's Triton kernels in a Llama: the loss in pieces, without the logits of all tokens at once."""
    if ON_CPU:
        raise NotHere("Liger's kernels need a GPU")
    torch = seeded_torch()
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
    model = llama().to(DEVICE)
    return train(torch, model, torch.optim.AdamW(model.parameters(), lr=1e-4)) + [digest(model)]


@program("flash-linear-attention", "fla", tolerance=0.02)
def linear_attention_program():
    """Layers of linear attention in Triton, for which Triton measures the fastest kernels: so results can differ."""
    if ON_CPU:
        raise NotHere("these kernels need a GPU")
    torch = seeded_torch()
    from fla.layers import GatedLinearAttention

    width = 1024
    model = torch.nn.ModuleList(GatedLinearAttention(hidden_size=width, num_heads=4) for _ in range(2)).to(DEVICE).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    numbers = []
    for step in range(8):
        batch = x = torch.randn(4, 512 + 256 * (step % 3), width, device=DEVICE, dtype=torch.bfloat16)
        for layer in model:
            x = x + layer(x)[0]
        loss = (x - batch.roll(1, 1)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(item(loss))
    return numbers


@program("trl-grpo", "trl", "datasets", "peft", arguments=("grpo",))
@program("trl-dpo", "trl", "datasets", "peft", arguments=("dpo",))
@program("trl-sft", "trl", "datasets", "peft", arguments=("sft",))
def trl_program(kind):
    """TRL's trainers: packed texts, pairs of answers beside a reference model, and answers that the model generates."""
    seeded_torch()
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    count, longest = size(64, 16), size(300, 30)
    prompts = sentences(count, 10, longest, 3)
    settings = dict(max_steps=size(8, 2), per_device_train_batch_size=4, gradient_checkpointing=True)
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)  # from where the trainers load the one that they compare with
        if kind == "sft":
            trainer = trl.SFTTrainer(
                model, args=trl.SFTConfig(**trainer_settings(folder, packing=True, packing_strategy="wrapped",
                                                           max_length=size(512), **settings)),
                train_dataset=Dataset.from_dict({"text": sentences(count * 4, 20, longest * 2, 4)}),
                processing_class=word_tokenizer())
        elif kind == "dpo":
            answers = {name: sentences(count, 10, longest, seed) for name, seed in (("chosen", 5), ("rejected", 6))}
            trainer = trl.DPOTrainer(
                model, args=trl.DPOConfig(**trainer_settings(folder, max_length=size(1024), **settings)),
                train_dataset=Dataset.from_dict({"prompt": prompts, **answers}), processing_class=word_tokenizer())
        else:
            def reward(completions, **_):
                return [sum(word.endswith(("1", "3", "5")) for word in text.split()) / 50 for text in completions]

            trainer = trl.GRPOTrainer(
                model, reward_funcs=reward, args=trl.GRPOConfig(**trainer_settings(
                    folder, num_generations=4, max_completion_length=size(64), beta=0.04, **settings)),
                train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=word_tokenizer())
        trainer.train()
        losses = [float(one["loss"]) for one in trainer.state.log_history if "loss" in one]
    return losses + [digest(trainer.accelerator.unwrap_model(trainer.model))]


@program("sentence-transformers", "sentence_transformers", "transformers")
def sentences_program():
    """Sentences of all lengths, encoded in batches that the library sorts, and their similarities."""
    seeded_torch()
    from sentence_transformers import SentenceTransformer, util
    from transformers import BertConfig, BertModel

    width = size(768, 64)
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(vocab_size=WORDS, hidden_size=width, num_hidden_layers=size(8, 2), intermediate_size=4 * width,
                             num_attention_heads=8, max_position_embeddings=600)).save_pretrained(folder)
        tokenizer = word_tokenizer()
        tokenizer.model_max_length = 512
        tokenizer.save_pretrained(folder)
        model = SentenceTransformer(folder, device=DEVICE)
    texts = sentences(size(1500, 40), 4, size(500, 40), 8)
    found = model.encode(texts, batch_size=48, convert_to_tensor=True, show_progress_bar=False)
    hits = util.semantic_search(found[:50], found, top_k=5)
    return [item(found), *(hit["corpus_id"] for one in hits for hit in one)]
