"""A packed folder loads like the original, with every argument of `from_pretrained`."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazily
from tiny_llama import bits_of, packed, saved, tiny_config, tiny_llama

torch = lazily("torch")
hf = lazily("transformers")
bf16torch = lazily("bf16codecs.torch")
safetensors_torch = lazily("safetensors.torch")

pytestmark = [
    pytest.mark.usefixtures("needs_transformers", "needs_accelerate", "no_network"),
    pytest.mark.filterwarnings("ignore"),
]


def loaded(load: Any, options: dict[str, Any], place: Path) -> Any:
    """Load a model; return its comparable parts, or the error without the folder's name."""
    torch.manual_seed(5)  # of weights that are missing
    options = {key: value() if callable(value) else value for key, value in options.items()}
    if "offload_folder" in options:
        options["offload_folder"] = place.with_name(f"{place.name}-offloaded")
    try:
        model = load(place, **options)
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        return type(error), str(error).replace(str(place), "")
    told = None
    if isinstance(model, tuple):
        model, info = model
        told = {key: sorted(map(str, value)) for key, value in info.items()}
    return described(model), told


def described(model: Any) -> dict[str, Any]:
    """Return a model's tensors, configuration and results."""
    ties: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        ties.setdefault(id(tensor), []).append(name)
    config = {k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"}
    generation = getattr(model, "generation_config", None)
    is_whole = not any(tensor.is_meta for tensor in model.state_dict().values())
    has_result = is_whole or "disk" in getattr(model, "hf_device_map", {}).values()
    return {
        "class": (type(model).__name__, model.dtype, model.training),
        "bits": bits_of(model) if is_whole and not hasattr(model, "hf_quantizer") else None,
        "parameters": {n: (type(p).__name__, p.requires_grad) for n, p in model.named_parameters()},
        "ties": sorted(ties.values()),
        "config": config,
        "generation": None if generation is None else generation.to_dict(),
        "devices": getattr(model, "hf_device_map", None),
        "result": model(torch.tensor([[1, 5, 9]]))[0].tolist() if has_result else None,
    }


def check_equal(native: Path, to: Path, cls: Any, options: dict[str, Any]) -> Any:
    """Load the original and the packed folder, in both ways; return the loaded parts."""
    expected = loaded(cls.from_pretrained, options, native)
    if not to.exists():
        packed(native, to)
    assert loaded(lambda *a, **k: bf16torch.from_pretrained(cls, *a, **k), options, to) == expected
    bf16torch.patch_transformers()
    try:
        assert loaded(cls.from_pretrained, options, to) == expected
    finally:
        bf16torch.unpatch_transformers()
    return expected


# --- folders --------------------------------------------------------------------------------------


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    text = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in text.items() if value is not None}))


def change_tensors(path: Path, change: Any) -> None:
    tensors = safetensors_torch.load_file(path)
    change(tensors)
    safetensors_torch.save_file(tensors, path, metadata={"format": "pt"})


def untied() -> Any:
    return tiny_llama(tie_word_embeddings=False)


def shards(folder: Path) -> None:
    saved(folder, untied(), max_shard_size="30KB")


def tied_shards(folder: Path) -> None:
    saved(folder, tiny_llama(tie_word_embeddings=True), max_shard_size="30KB")


def mixed(folder: Path) -> None:
    """Save a model with one norm in float32, and a configuration without a dtype."""
    saved(folder, untied())
    change_config(folder, dtype=None)

    def change(tensors: Any) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].float()

    change_tensors(folder / "model.safetensors", change)


def mixed_shards(folder: Path) -> None:
    """Save a model of which the first file has another dtype than the first tensor."""
    shards(folder)
    change_config(folder, dtype=None)
    first = min(folder.glob("*.safetensors"))
    change_tensors(first, lambda own: own.update({name: own[name].half() for name in own}))


def shards_with_a_dtype(folder: Path) -> None:
    mixed_shards(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"]["dtype"] = "float64"
    path.write_text(json.dumps(index))


def integers_first(folder: Path) -> None:
    mixed(folder)

    def change(tensors: Any) -> None:
        tensors["a.table"] = torch.arange(9)
        tensors["b.scale"] = torch.ones(3).to(torch.float8_e4m3fn)

    change_tensors(folder / "model.safetensors", change)


def incomplete(folder: Path) -> None:
    """Save a model that lacks a tensor, has another, and one of another shape."""
    saved(folder, untied())

    def change(tensors: Any) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["other"] = torch.ones(3)
        tensors["model.norm.weight"] = torch.ones(5)

    change_tensors(folder / "model.safetensors", change)


def base_only(folder: Path) -> None:
    saved(folder, untied())
    hf.LlamaModel.from_pretrained(folder).save_pretrained(folder)


def renamed(folder: Path) -> None:
    saved(folder, untied())

    def change(tensors: Any) -> None:
        for name in list(tensors):
            tensors[name.replace("model.", "old.")] = tensors.pop(name)

    change_tensors(folder / "model.safetensors", change)


def below(folder: Path) -> None:
    """Save models with variants, in the folder and one below."""
    saved(folder, tiny_llama())
    saved(folder / "inner", untied())
    untied().half().save_pretrained(folder / "inner", variant="fp16")
    untied().half().save_pretrained(folder / "inner", variant="shards", max_shard_size="30KB")


FOLDERS = {
    function.__name__: function
    for function in (
        shards,
        tied_shards,
        mixed,
        mixed_shards,
        shards_with_a_dtype,
        integers_first,
        incomplete,
        base_only,
        renamed,
        below,
    )
} | {"plain": lambda folder: saved(folder)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that makes a folder once, and returns its path and the packed one's."""
    root = tmp_path_factory.mktemp("folders")

    def make(name: str) -> tuple[Path, Path]:
        native = root / name
        if not native.exists():
            FOLDERS[name](native)
        return native, root / f"{name}-packed"

    return make


# --- arguments ------------------------------------------------------------------------------------

DEVICES = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}

#: A folder, a class, and arguments; callables are resolved once transformers is imported.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((folder, "LlamaForCausalLM", {"output_loading_info": True}) for folder in FOLDERS),
    *(("shards", name, {}) for name in ("AutoModel", "AutoModelForCausalLM", "LlamaModel")),
    ("shards", "LlamaForSequenceClassification", {"output_loading_info": True}),
    ("base_only", "AutoModelForCausalLM", {"output_loading_info": True}),
    *((folder, "LlamaModel", {}) for folder in ("mixed", "mixed_shards", "base_only")),
    *(
        (folder, "LlamaForCausalLM", {"dtype": dtype})
        for folder in ("mixed", "mixed_shards", "shards_with_a_dtype")
        for dtype in (None, "auto", "float16", lambda: torch.float64)
    ),
    ("plain", "LlamaForCausalLM", {"dtype": lambda: {"": torch.float16}}),
    ("plain", "LlamaForCausalLM", {"dtype": "no-such-dtype"}),
    ("plain", "LlamaForCausalLM", {"torch_dtype": "float16"}),
    ("plain", "LlamaForCausalLM", {"config": lambda: tiny_config(dtype=None)}),
    ("plain", "LlamaForCausalLM", {"state_dict": None, "gguf_file": None}),
    ("plain", "LlamaForCausalLM", {"use_safetensors": True}),
    ("plain", "LlamaForCausalLM", {"weights_only": False}),
    ("plain", "LlamaForCausalLM", {"disable_mmap": True}),
    ("plain", "LlamaForCausalLM", {"low_cpu_mem_usage": True, "_fast_init": False}),
    ("plain", "LlamaForCausalLM", {"revision": "other", "local_files_only": True, "token": "x"}),
    ("plain", "LlamaForCausalLM", {"cache_dir": "x", "force_download": True, "proxies": {}}),
    ("plain", "LlamaForCausalLM", {"trust_remote_code": True}),
    ("plain", "LlamaForCausalLM", {"attn_implementation": "eager", "use_cache": False}),
    ("plain", "LlamaForCausalLM", {"output_attentions": True, "num_hidden_layers": 1}),
    ("plain", "LlamaForCausalLM", {"fusion_config": {}}),
    ("plain", "LlamaForCausalLM", {"no_such_argument": 3}),
    ("plain", "AutoModelForCausalLM", {"generation_config": lambda: hf.GenerationConfig(top_k=3)}),
    ("incomplete", "LlamaForCausalLM", {}),
    ("incomplete", "LlamaForCausalLM", {"ignore_mismatched_sizes": True}),
    ("renamed", "LlamaForCausalLM", {"key_mapping": {"^old": "model"}}),
    ("below", "LlamaForCausalLM", {"subfolder": "inner"}),
    ("below", "LlamaForCausalLM", {"subfolder": "inner", "variant": "fp16"}),
    ("below", "LlamaForCausalLM", {"subfolder": "inner", "variant": "shards"}),
    ("below", "AutoModel", {"subfolder": "inner", "variant": "fp16", "dtype": "auto"}),
    *(
        ("shards", "AutoModelForCausalLM", {"device_map": place})
        for place in ("auto", "cpu", "sequential", "meta", {"": "cpu"})
    ),
    ("shards", "AutoModelForCausalLM", {"device_map": "auto", "max_memory": {"cpu": "1GB"}}),
    (
        "shards",
        "AutoModelForCausalLM",
        {"device_map": DEVICES, "offload_folder": "", "offload_buffers": True},
    ),
]


def name_of(case: tuple[str, str, dict[str, Any]]) -> str:
    folder, cls, options = case
    return "-".join([folder, cls, *options, *(v for v in options.values() if isinstance(v, str))])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_arguments(folders, case):
    folder, cls, options = case
    check_equal(*folders(folder), getattr(hf, cls), options)


def test_all_arguments_are_tried():
    """Those that are left out need more than one process, a GPU, or the hub."""
    given = {name for _, _, options in CASES for name in options}
    known = inspect.signature(hf.PreTrainedModel.from_pretrained).parameters
    left = known.keys() - given - {"pretrained_model_name_or_path", "model_args", "kwargs"}
    assert not left


# --- files beside a model -------------------------------------------------------------------------


@pytest.mark.parametrize("has_model", [True, False])
def test_adapters(tmp_path, has_model):
    """Of PEFT, in the folder of their model, or in one that names it."""
    peft = pytest.importorskip("peft", reason="needs peft")
    base = saved(tmp_path / "base")
    model = peft.get_peft_model(
        hf.LlamaForCausalLM.from_pretrained(base),
        peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False),
    )
    native = saved(tmp_path / "native") if has_model else tmp_path / "native"
    model.save_pretrained(native)
    (result, _) = check_equal(native, tmp_path / "packed", hf.AutoModelForCausalLM, {})
    assert any("lora_A" in name for name in result["parameters"])
    assert not list((tmp_path / "packed").glob("*.safetensors"))


def test_adapters_of_packed_models(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    packed(saved(tmp_path / "native"), tmp_path / "base")
    base = bf16torch.from_pretrained(hf.LlamaForCausalLM, tmp_path / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2))
    model.save_pretrained(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(tmp_path / "base")
    packed(tmp_path / "adapter", tmp_path / "packed")
    found = bf16torch.from_pretrained(hf.AutoModelForCausalLM, tmp_path / "packed")
    weights = {name: tensor for name, tensor in found.named_parameters() if "lora" not in name}
    expected = dict(tiny_llama().named_parameters())
    assert all(
        torch.equal(tensor, expected[name.replace(".base_layer", "")])
        for name, tensor in weights.items()
    )


def test_files_that_the_class_of_a_configuration_names(tmp_path):
    class WithHead(hf.LlamaConfig):
        extra_files = ("head.safetensors", "missing.safetensors")

    if not hasattr(hf.LlamaConfig, "extra_files"):
        pytest.skip("this transformers looks for no other files")
    native = saved(tmp_path / "native", untied())
    head = {}
    change_tensors(
        native / "model.safetensors",
        lambda own: head.update({"lm_head.weight": own.pop("lm_head.weight")}),
    )
    safetensors_torch.save_file(head, native / "head.safetensors")
    options = {"config": lambda: WithHead(**tiny_config(tie_word_embeddings=False).to_dict())}
    result, _ = check_equal(native, tmp_path / "packed", hf.LlamaForCausalLM, options)
    assert result["bits"] == bits_of(untied())


def test_code_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    native = saved(tmp_path / "native")
    (native / "modeling_own.py").write_text(
        "from transformers import LlamaForCausalLM\n\n\nclass Own(LlamaForCausalLM):\n    pass\n"
    )
    change_config(native, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    options = {"trust_remote_code": True}
    result, _ = check_equal(native, tmp_path / "packed", hf.AutoModelForCausalLM, options)
    assert result["class"][0] == "Own"


@pytest.mark.parametrize("shard_size", ["5GB", "30KB"])
def test_layers_that_predict_several_tokens(tmp_path, monkeypatch, shard_size):
    layers = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(layers, "MtpModel"):
        pytest.skip("this transformers has no such layers")
    own = {r"model\.layers\.1.*"}
    monkeypatch.setattr(hf.Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", own)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "first_k_dense_replace": 1}
    kinds = {"num_hidden_layers": 1, "num_mtp_layers": 1, "vocab_size": 64}
    config = hf.Glm4MoeConfig(**sizes, **heads, **experts, **kinds)
    main = hf.Glm4MoeForCausalLM(config)
    state = main.state_dict()
    for name, tensor in layers.MtpModel(main, 1).state_dict().items():
        if name.startswith("layers.0."):
            name = name.removeprefix("layers.0.").removeprefix("mtp_block.")
            state[f"model.layers.1.{name}"] = torch.randn(tensor.shape)
    native = tmp_path / "native"
    main.save_pretrained(native, state_dict=state, max_shard_size=shard_size)
    packed(native, tmp_path / "packed")
    bf16torch.patch_transformers()
    try:
        found = [
            layers.MtpModel.from_pretrained(hf.Glm4MoeForCausalLM.from_pretrained(place))
            for place in (native, tmp_path / "packed")
        ]
    finally:
        bf16torch.unpatch_transformers()
    assert bits_of(found[0]) == bits_of(found[1])


# --- quantized models -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", ["5GB", "30KB"])
def test_quantized_models(tmp_path, shard_size):
    """Of torchao, which reads the metadata of all files; and when they are loaded."""
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao")
    native, to = saved(tmp_path / "native", untied()), tmp_path / "packed"
    as_int8 = quantization.Int8WeightOnlyConfig(version=2)
    options = {"quantization_config": lambda: hf.TorchAoConfig(as_int8)}
    check_equal(native, to, hf.AutoModelForCausalLM, options)
    model = hf.AutoModelForCausalLM.from_pretrained(
        native, quantization_config=hf.TorchAoConfig(as_int8)
    )
    model.save_pretrained(tmp_path / "quantized", max_shard_size=shard_size)
    place, to = tmp_path / "quantized", tmp_path / "packed-quantized"
    result, _ = check_equal(place, to, hf.AutoModelForCausalLM, {"output_loading_info": True})
    assert result["parameters"]["model.layers.0.mlp.up_proj.weight"][0] == "Int8Tensor"
    assert len(list(place.glob("*.safetensors"))) > 1 or shard_size == "5GB"
