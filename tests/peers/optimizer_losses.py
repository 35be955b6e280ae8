"""Prints ten training losses of a small timm model with torch's and timm's optimizers, for the test of
trainer/src/optim/mod.rs, which computes the same initial weights and images.

    python tests/peers/optimizer_losses.py > tests/peers/goldens/optimizer_losses.json

Created with torch 2.11.0 and timm 1.0.31 on the CPU.
"""

import json

import torch
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from timm.optim.lamb import Lamb
from timm.utils import ModelEmaV3

STEPS = 10
LEARNING_RATE = 0.02
WEIGHT_DECAY = 0.1


def wave(shape, frequency):
    count = int(torch.tensor(shape).prod())
    values = torch.cos(torch.arange(count, dtype=torch.float64) * frequency)
    return values.reshape(shape)


def model():
    made = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, mlp_ratio=2.0, num_classes=5, global_pool="token"
    )
    with torch.no_grad():
        for index, (name, parameter) in enumerate(made.named_parameters()):
            values = 0.2 * wave(parameter.shape, 0.37 * (index + 1))
            is_norm_weight = name.endswith("weight") and "norm" in name
            parameter.copy_(values + 1.0 if is_norm_weight else values)
    return made.train()


def images():
    return wave((4, 3, 8, 8), 0.7).float()


def groups(made, layer_decay):
    skip = made.no_weight_decay()
    if layer_decay < 1.0:
        made_groups = param_groups_layer_decay(
            made, weight_decay=WEIGHT_DECAY, no_weight_decay_list=skip, layer_decay=layer_decay
        )
        for group in made_groups:
            group["lr"] = LEARNING_RATE * group["lr_scale"]
        return made_groups
    return param_groups_weight_decay(made, weight_decay=WEIGHT_DECAY, no_weight_decay_list=skip)


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=LEARNING_RATE, betas=(0.9, 0.95)),
    "sgd": lambda params: torch.optim.SGD(params, lr=LEARNING_RATE, momentum=0.9),
    "sgdNesterov": lambda params: torch.optim.SGD(params, lr=LEARNING_RATE, momentum=0.9, nesterov=True),
    "sgdPlain": lambda params: torch.optim.SGD(params, lr=LEARNING_RATE),
    "lamb": lambda params: Lamb(params, lr=LEARNING_RATE),
}


def losses(optimizer_name, layer_decay, clip):
    made = model()
    optimizer = OPTIMIZERS[optimizer_name](groups(made, layer_decay))
    average = ModelEmaV3(made, decay=0.9)
    batch, labels = images(), torch.tensor([0, 1, 2, 3])
    found = []
    for step in range(STEPS):
        loss = torch.nn.functional.cross_entropy(made(batch), labels, label_smoothing=0.1)
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(made.parameters(), clip)
        optimizer.step()
        average.update(made, step=step + 1)
    with torch.no_grad():
        of_average = torch.nn.functional.cross_entropy(average.module(batch), labels, label_smoothing=0.1).item()
    return {
        "optimizer": optimizer_name,
        "layerDecay": layer_decay,
        "clipGradNorm": clip,
        "losses": found,
        "lossOfAverage": of_average,
    }


def main():
    torch.set_num_threads(1)
    cases = [losses(name, 1.0, None) for name in OPTIMIZERS]
    cases += [losses(name, 0.75, 0.5) for name in ("adamw", "sgd", "lamb")]
    print(json.dumps(cases, indent=1))


main()
