"""Writes results of PyTorch and timm for small models to tests/peers/goldens, for the trainer's tests.

    make goldens

Each folder has:
    model.json             the model in the trainer's run configuration (resolved `spec.model`)
    model.safetensors      weights with timm's or torchvision's names
    expected.safetensors   images, labels, logits; grad.NAME is the gradient of the mean cross-entropy
`resized` (images of 24 pixels instead of 16) and `adapted_*` (another number of channels) use the weights of
`class_token`, adapted like timm adapts weights of another size. optimizer_losses.py writes losses of optimizers,
divided_training.py weights of sharded models.

Everything is seeded: with the versions of requirements.txt on a CPU, recreated files differ only by rounding.
"""

import json
import pathlib

import torch
import torchvision
from safetensors.torch import save_file
from timm.models._manipulate import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

FOLDER = pathlib.Path(__file__).parent / "goldens"
IMAGE, PATCH, HIDDEN, DEPTH, HEADS, MLP, CLASSES = 16, 4, 24, 2, 3, 48, 5
BATCH = 3


def configuration(**changes):
    """The model in the trainer's run configuration."""
    values = {
        "imageSize": IMAGE, "patchSize": PATCH, "hiddenSize": HIDDEN, "depth": DEPTH, "heads": HEADS, "mlpSize": MLP,
        "numClasses": CLASSES, "channels": 3, "pooling": "token",
    }
    return values | changes


def timm_model(config):
    """The same model, created by timm."""
    model = VisionTransformer(
        img_size=config["imageSize"],
        patch_size=config["patchSize"],
        in_chans=config["channels"],
        num_classes=config["numClasses"],
        embed_dim=config["hiddenSize"],
        depth=config["depth"],
        num_heads=config["heads"],
        mlp_ratio=config["mlpSize"] / config["hiddenSize"],
        class_token=config["pooling"] == "token",
        global_pool={"token": "token", "average": "avg"}[config["pooling"]],
        reg_tokens=config.get("registerTokens", 0),
        no_embed_class=config.get("registerTokens", 0) > 0,
        init_values=config.get("layerScale"),
    )
    return shaken(model)


def shaken(model):
    """Adds noise everywhere: initial values such as zero biases and unit norms could hide errors."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def write_case(name, config, model, borrowed=False):
    """Writes logits and, unless weights are borrowed, the weights of `model` and their gradients."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(config, indent=2) + "\n")
    images = torch.randn(BATCH, config["channels"], config["imageSize"], config["imageSize"])
    labels = torch.randint(config["numClasses"], (BATCH,))
    logits = model(images)
    torch.nn.functional.cross_entropy(logits, labels).backward()
    expected = {"images": images, "labels": labels, "logits": logits.detach()}
    if not borrowed:
        save_file(model.state_dict(), folder / "model.safetensors")
        expected |= {f"grad.{key}": parameter.grad.contiguous() for key, parameter in model.named_parameters()}
    save_file(expected, folder / "expected.safetensors")


def write_timm(name, **changes):
    config = configuration(**changes)
    model = timm_model(config)
    write_case(name, config, model)
    return model


def write_resized(weights):
    """A position embedding of 4 x 4 patches resized to 6 x 6 by timm."""
    config = configuration(imageSize=24)
    model = timm_model(config)
    model.load_state_dict(checkpoint_filter_fn(dict(weights), model))
    write_case("resized", config, model, borrowed=True)


def write_adapted(weights, channels):
    """Weights for three channels adapted to another number, like timm's build_model_with_cfg."""
    config = configuration(channels=channels)
    model = timm_model(config)
    name = "patch_embed.proj.weight"
    model.load_state_dict(weights | {name: adapt_input_conv(channels, weights[name])})
    write_case(f"adapted_{channels}", config, model, borrowed=True)


def write_torchvision():
    config = configuration()
    model = torchvision.models.VisionTransformer(
        image_size=IMAGE, patch_size=PATCH, num_layers=DEPTH, num_heads=HEADS, hidden_dim=HIDDEN, mlp_dim=MLP,
        num_classes=CLASSES,
    )
    shaken(model)
    write_case("torchvision", config, model)


def main():
    torch.manual_seed(20260)
    torch.set_num_threads(1)
    class_token = write_timm("class_token")
    write_timm("pooled", pooling="average")
    write_timm("registers", registerTokens=2)
    write_timm("registers_pooled", registerTokens=4, pooling="average", layerScale=0.5)
    write_timm("layer_scale", layerScale=0.1, channels=1)
    write_timm("channels_5", channels=5, pooling="average")
    write_resized(class_token.state_dict())
    for channels in (1, 5):
        write_adapted(class_token.state_dict(), channels)
    write_torchvision()


if __name__ == "__main__":
    main()
