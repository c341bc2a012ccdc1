"""Writes small random models of transformers and what they compute, for transformers_test.go: a file for each, with its
parameters by name, their gradients by "grad." and the name, tokens, logits and the loss."""

import os
import sys

import torch
from safetensors.torch import save_file
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, num_experts_per_tok=2, rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    attn_implementation="eager", experts_implementation="eager",
)
QWEN = dict(num_experts=8, moe_intermediate_size=24, **SIZES)
MODELS = {
    "mixtral": MixtralForCausalLM(MixtralConfig(num_local_experts=4, **SIZES)),
    "qwen3": Qwen3MoeForCausalLM(Qwen3MoeConfig(norm_topk_prob=True, **QWEN)),
    "qwen3-dense": Qwen3MoeForCausalLM(Qwen3MoeConfig(norm_topk_prob=False, mlp_only_layers=[0], **QWEN)),
}

for name, model in MODELS.items():
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:  # the scales of normalizations
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, p.shape[-1] ** -0.5)
    tokens = torch.randint(SIZES["vocab_size"], (8, 13))
    out = model(input_ids=tokens, labels=tokens)  # each token but the first is the label of the one before
    out.loss.backward()
    arrays = {n: p.detach() for n, p in model.named_parameters()}
    arrays |= {"grad." + n: p.grad for n, p in model.named_parameters()}
    arrays |= {"tokens": tokens.float(), "logits": out.logits[:, :-1].detach(), "loss": out.loss.detach()}
    save_file({n: x.contiguous() for n, x in arrays.items()}, os.path.join(sys.argv[1], name + ".safetensors"))
