"""Writes results of PyTorch and timm for small models to tests/peers/goldens, for the trainer's tests.

    make goldens

Each folder has:
    model.json             the model in the trainer's run configuration (resolved `spec.model`)
    model.safetensors      weights with the names of timm, torchvision, Hugging Face, OpenAI or Meta
    expected.safetensors   images, labels, logits; grad.NAME is the gradient of the mean cross-entropy; losses of ten
                           steps of gradient descent
`resized` (images of 24 pixels instead of 16) and `adapted_*` (another number of channels) use the weights of
`class_token`, adapted like timm adapts weights of another size. optimizer_losses.py writes losses of optimizers,
divided_training.py weights of sharded models.

presets.json says of each of timm's Vision Transformers what the trainer's preset of that name must have.

Everything is seeded: with the versions of requirements.txt on a CPU, recreated files differ only by rounding.
"""

import copy
import json
import math
import pathlib
import tempfile
from functools import partial

import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from timm.layers import LayerNorm
from timm.models._manipulate import adapt_input_conv
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as eva_filter_fn
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
    parts = config.get("architecture", {})
    sizes = dict(
        img_size=config["imageSize"],
        patch_size=config["patchSize"],
        in_chans=config["channels"],
        num_classes=config["numClasses"],
        embed_dim=config["hiddenSize"],
        depth=config["depth"],
        num_heads=config["heads"],
        mlp_ratio=config["mlpSize"] / config["hiddenSize"],
        qkv_bias=parts.get("qkvBias") != "none",
        init_values=config.get("layerScale"),
        norm_layer=partial(LayerNorm, eps=parts.get("normEpsilon", 1e-6)),
        global_pool={"token": "token", "average": "avg", "attention": "map"}[config["pooling"]],
    )
    registers = config.get("registerTokens", 0)
    if parts.get("position") == "rotary":
        return shaken(Eva(
            **sizes, num_reg_tokens=registers, use_fc_norm=False, use_abs_pos_emb=False, use_rot_pos_emb=True,
            rope_type="dinov3", rope_temperature=100, rope_rotate_half=True,
            swiglu_mlp=parts.get("mlp") == "swiGlu", swiglu_align_to=8 if parts.get("mlp") == "swiGlu" else 0,
        ))
    if parts.get("distillationToken"):
        return shaken(VisionTransformerDistilled(**sizes))
    return shaken(VisionTransformer(
        **sizes,
        class_token=config["pooling"] == "token",
        reg_tokens=registers,
        no_embed_class=registers > 0 or parts.get("position") == "learnedOfPatches",
        fc_norm=False if parts.get("normBeforePooling") else None,
        pre_norm=parts.get("inputNorm", False),
        act_layer={"geluTanh": "gelu_tanh", "quickGelu": "quick_gelu"}.get(parts.get("mlp")),
    ))


def own_name(name):
    """The trainer's name of a parameter of timm's Eva."""
    return name.replace(".gamma_1", ".ls1.gamma").replace(".gamma_2", ".ls2.gamma")


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
        gradients = {own_name(key): parameter.grad for key, parameter in model.named_parameters()}
        expected |= {f"grad.{key}": gradient.contiguous() for key, gradient in gradients.items()}
        expected["losses"] = torch.tensor(losses(copy.deepcopy(model), images, labels))
    save_file(expected, folder / "expected.safetensors")


def losses(model, images, labels):
    """Of ten steps of gradient descent, before each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


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


def write_foreign(name, config, model, state, logits_of):
    """Weights under other names than timm's, and logits."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(config, indent=2) + "\n")
    images = torch.randn(BATCH, 3, IMAGE, IMAGE)
    with torch.no_grad():
        logits = logits_of(model, images)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "model.safetensors")
    save_file({"images": images, "logits": logits}, folder / "expected.safetensors")


def saved(model):
    """The tensors as in files on the Hub, whose names differ from those of modules since transformers 5."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def write_hugging_face():
    """Models of transformers. Where it has no classifier like timm's, one follows its pooled output."""
    # Replaces functions that draw initial values.
    import transformers

    sizes = dict(
        image_size=IMAGE, patch_size=PATCH, hidden_size=HIDDEN, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        intermediate_size=MLP,
    )
    timms = dict(sizes, layer_norm_eps=1e-6)
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**timms, num_labels=CLASSES))
    deit = transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**timms, num_labels=CLASSES))
    for name, model, changes in (
        ("hf_vit", vit, {}),
        ("hf_deit", deit, {"architecture": {"distillationToken": True}}),
    ):
        model = shaken(model)
        write_foreign(name, configuration(**changes), model, saved(model), lambda own, images: own(images).logits)

    dino = {"layerScale": 1.0}
    dinov3 = {
        "unreadClassToken": True, "position": "rotary", "normBeforePooling": True, "normEpsilon": 1e-5,
        "qkvBias": "queriesAndValues",
    }
    gated = dinov3 | {"mlp": "swiGlu"}
    clip = {"inputNorm": True, "normEpsilon": 1e-5, "mlp": "quickGelu"}
    of_dinov3 = dict(sizes, num_register_tokens=4, hidden_act="gelu")
    for name, model, prefix, changes in (
        ("hf_dinov2", transformers.Dinov2Model(transformers.Dinov2Config(
            image_size=IMAGE, patch_size=PATCH, hidden_size=HIDDEN, num_hidden_layers=DEPTH,
            num_attention_heads=HEADS, mlp_ratio=MLP // HIDDEN)), "", dino),
        ("hf_dinov2_registers", transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(
            image_size=IMAGE, patch_size=PATCH, hidden_size=HIDDEN, num_hidden_layers=DEPTH,
            num_attention_heads=HEADS, mlp_ratio=MLP // HIDDEN)), "", dino | {"registerTokens": 4}),
        ("hf_dinov3", transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**of_dinov3)), "",
         dino | {"registerTokens": 4, "architecture": dinov3}),
        ("hf_dinov3_gated", transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(
            **(of_dinov3 | {"hidden_act": "silu"}), use_gated_mlp=True)), "",
         dino | {"registerTokens": 4, "architecture": gated}),
        ("hf_clip", transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**sizes)), "vision_model.",
         {"architecture": clip}),
        ("hf_siglip", transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes)), "vision_model.",
         {"pooling": "attention", "architecture": {"mlp": "geluTanh"}}),
    ):
        model = shaken(model)
        head = torch.nn.Linear(HIDDEN, CLASSES)
        state = saved(model)
        if prefix:
            # As in files of both encoders.
            state = {prefix + key.removeprefix(prefix): value for key, value in state.items()}
            state["logit_scale"] = torch.ones(1)
        state |= {f"{prefix}head.weight": head.weight.detach(), f"{prefix}head.bias": head.bias.detach()}
        write_foreign(name, configuration(**changes), model, state,
                      lambda own, images, head=head: head(own(images).pooler_output))


def write_originals():
    """Files with the names of OpenAI and Meta: made from timm's model, which reads them back."""
    def write(name, state, rename, filter_fn, **changes):
        config = configuration(**changes)
        original = {}
        for key, value in state.items():
            original |= rename(key, value)
        model = timm_model(config)
        model.load_state_dict(filter_fn(dict(original), model) | {
            key: value for key, value in state.items() if key.startswith("head.")})
        write_foreign(name, config, model, original, lambda own, images: own(images))

    clip = {"inputNorm": True, "normEpsilon": 1e-5, "mlp": "quickGelu"}

    def of_openai(key, value):
        if key.startswith("head."):
            return {f"visual.{key}": value}
        for timms, theirs in (
            ("blocks.", "transformer.resblocks."), ("patch_embed.proj", "conv1"), ("pos_embed", "positional_embedding"),
            ("cls_token", "class_embedding"), ("norm_pre", "ln_pre"), ("qkv.", "in_proj_"), ("attn.proj", "attn.out_proj"),
            ("fc1", "c_fc"), ("fc2", "c_proj"), ("norm1", "ln_1"), ("norm2", "ln_2"), ("norm.", "ln_post."),
        ):
            key = key.replace(timms, theirs)
        value = value[0, 0] if key == "class_embedding" else value[0] if key == "positional_embedding" else value
        return {f"visual.{key}": value, "token_embedding.weight": torch.zeros(2, 2),
                "transformer.resblocks.0.ln_1.weight": torch.zeros(2)}

    state = timm_model(configuration(architecture=clip)).state_dict()
    write("openai_clip", state, of_openai,
          lambda state, model: {key: value for key, value in checkpoint_filter_fn(state, model).items()
                                if not key.startswith("head.")}, architecture=clip)

    registers = dict(registerTokens=4, layerScale=0.1)
    state = timm_model(configuration(**registers)).state_dict()
    first = torch.randn(1, 1, HIDDEN)

    def of_dinov2(key, value):
        if key == "pos_embed":
            return {key: torch.cat([first, value], 1), "mask_token": torch.zeros(1, HIDDEN)}
        if key == "cls_token":
            return {key: value - first}
        return {key.replace("reg_token", "register_tokens"): value}

    write("meta_dinov2", state, of_dinov2, checkpoint_filter_fn, **registers)

    parts = {
        "unreadClassToken": True, "position": "rotary", "normBeforePooling": True, "normEpsilon": 1e-5,
        "qkvBias": "queriesAndValues", "mlp": "swiGlu",
    }
    dinov3 = dict(registerTokens=4, layerScale=0.1, architecture=parts)
    state = timm_model(configuration(**dinov3)).state_dict()

    def of_dinov3(key, value):
        for timms, theirs in (
            ("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"), ("fc1_g", "w1"),
            ("fc1_x", "w2"), ("fc2", "w3"),
        ):
            key = key.replace(timms, theirs)
        if key.endswith("v_bias"):
            return {}
        if key.endswith("q_bias"):
            values = state[key.replace("q_bias", "v_bias")]
            bias = torch.cat([value, torch.randn(HIDDEN), values])
            name = key.replace("q_bias", "qkv.bias")
            return {name: bias, f"{name}_mask": torch.ones(3 * HIDDEN)}
        return {key: value, "mask_token": torch.zeros(1, HIDDEN), "rope_embed.periods": torch.zeros(2)}

    write("meta_dinov3", state, of_dinov3, eva_filter_fn, **dinov3)


def write_families():
    """What families have in place of the plain Vision Transformer's parts."""
    gap = {"normBeforePooling": True, "qkvBias": "none"}
    write_timm("gap", pooling="average", layerScale=0.1, architecture=gap)
    clip = {"inputNorm": True, "normEpsilon": 1e-5, "mlp": "quickGelu"}
    write_timm("clip", architecture=clip)
    write_timm("deit_distilled", architecture={"distillationToken": True})
    write_timm("deit3", layerScale=0.1, architecture={"position": "learnedOfPatches"})
    write_timm("siglip", pooling="attention", architecture={"mlp": "geluTanh"})
    dinov3 = {
        "unreadClassToken": True, "position": "rotary", "normBeforePooling": True, "normEpsilon": 1e-5,
        "qkvBias": "none",
    }
    write_timm("dinov3", pooling="average", registerTokens=4, layerScale=0.1, architecture=dinov3)
    swiglu = dinov3 | {"mlp": "swiGlu"}
    write_timm("dinov3_plus", pooling="average", registerTokens=4, layerScale=0.1, architecture=swiglu)
    biases = dinov3 | {"qkvBias": "queriesAndValues"}
    write_timm("dinov3_qkvb", registerTokens=4, layerScale=0.1, architecture=biases)


def write_presets():
    """Sizes of all models of the modules that hold Vision Transformers, for 1,000 classes."""
    presets = {}
    for module in ("vision_transformer", "deit", "eva"):
        for name in timm.list_models(module=module):
            with torch.device("meta"):
                model = timm.create_model(name, num_classes=1000)
            shapes = [tuple(parameter.shape) for parameter in model.parameters()]
            no_decay = model.no_weight_decay()
            block = model.blocks[0]
            activation = getattr(block.mlp, "act", None) if hasattr(block, "mlp") else None
            presets[name] = {
                "image": model.default_cfg["input_size"][-1] if not hasattr(model, "patch_embed")
                else model.patch_embed.img_size[0],
                "parameters": sum(math.prod(shape) for shape in shapes),
                "tensors": len(shapes),
                "undecayed": sum(
                    parameter.numel() for key, parameter in model.named_parameters()
                    if parameter.ndim <= 1 or key.endswith(".bias") or key in no_decay),
                "heads": getattr(getattr(block, "attn", None), "num_heads", None),
                "activation": type(activation).__name__,
                "epsilon": getattr(getattr(block, "norm1", None), "eps", None),
                "pool": model.global_pool,
                "layer_scale": float(model_init_values(block)) if model_init_values(block) else None,
            }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(preset)}" for name, preset in presets.items())
    (FOLDER / "presets.json").write_text(f"{{\n{lines}\n}}\n")


def model_init_values(block):
    """The initial value of layer scale."""
    return getattr(getattr(block, "ls1", None), "init_values", None)


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
    write_families()
    write_hugging_face()
    write_originals()
    write_presets()


if __name__ == "__main__":
    main()
