"""`patch_diffusers`: pipelines and their models are loaded from packed folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import pack_hugging_face, unpack_hugging_face
from folders import content_of
from hub_server import Hub, run_at
from lazy_imports import lazily
from tiny_llama import bits_of

torch = lazily("torch")
diffusers = lazily("diffusers")
transformers = lazily("transformers")
bf16torch = lazily("bf16codecs.torch")

pytestmark = pytest.mark.usefixtures("needs_transformers", "needs_diffusers")

MODELS = "unet", "vae", "text_encoder"
NOTHING = dict.fromkeys(("tokenizer", "safety_checker", "feature_extractor"))


@pytest.fixture(scope="session")
def needs_diffusers() -> None:
    pytest.importorskip("diffusers", reason="needs diffusers")


def tiny_pipeline() -> Any:
    """Return a pipeline with models of two libraries."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(block_out_channels=[16], norm_num_groups=8)
    config = transformers.CLIPTextConfig(
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=1,
        vocab_size=100,
    )
    return diffusers.StableDiffusionPipeline(
        unet=unet.to(torch.bfloat16),
        vae=vae.to(torch.bfloat16),
        text_encoder=transformers.CLIPTextModel(config).to(torch.bfloat16),
        scheduler=diffusers.DDIMScheduler(),
        requires_safety_checker=False,
        **NOTHING,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline, and a variant of it whose models are in several files."""
    folder = tmp_path_factory.mktemp("pipeline")
    pipeline = tiny_pipeline()
    pipeline.save_pretrained(folder)
    pipeline.save_pretrained(folder, variant="fp16", max_shard_size="100KB")
    return folder


@pytest.fixture(scope="module")
def packed(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "pipeline"
    pack_hugging_face(saved, target)
    return target


@pytest.fixture
def patch() -> Iterator[None]:
    bf16torch.patch_diffusers()
    yield
    bf16torch.unpatch_diffusers()


def load(path: Any, **options: Any) -> Any:
    return diffusers.DiffusionPipeline.from_pretrained(
        path, torch_dtype=torch.bfloat16, **NOTHING, **options
    )


def assert_same(ours: Any, theirs: Any) -> None:
    for name in MODELS:
        assert bits_of(getattr(ours, name)) == bits_of(getattr(theirs, name))


def test_folders_come_back(saved: Path, packed: Path, tmp_path: Path) -> None:
    unpack_hugging_face(packed, tmp_path / "back")
    assert content_of(tmp_path / "back") == content_of(saved)


@pytest.mark.parametrize("options", [{}, {"variant": "fp16"}, {"low_cpu_mem_usage": False}])
def test_pipelines(saved: Path, packed: Path, patch: None, options: dict[str, Any]) -> None:
    assert not list(packed.rglob("*.safetensors"))
    assert_same(load(packed, **options), load(saved, **options))
    ours = diffusers.UNet2DConditionModel.from_pretrained(packed, subfolder="unet")
    theirs = diffusers.UNet2DConditionModel.from_pretrained(saved, subfolder="unet")
    assert bits_of(ours) == bits_of(theirs)


def test_patches_of_two_users(packed: Path) -> None:
    """Each goes on until its own user ends it."""
    encoder = transformers.CLIPTextModel
    bf16torch.patch_transformers()
    bf16torch.patch_diffusers()
    bf16torch.unpatch_diffusers()
    encoder.from_pretrained(packed / "text_encoder")
    bf16torch.unpatch_transformers()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        encoder.from_pretrained(packed / "text_encoder")


def test_a_local_folder_is_not_looked_for_on_a_hub(
    packed: Path, tmp_path: Path, patch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has its name there would choose the weights."""

    def ask(*args: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("bf16codecs.store.remote.hub.find_on_hub", ask)
    monkeypatch.chdir(tmp_path)
    for name, model in {
        "vae": diffusers.AutoencoderKL,
        "text_encoder": transformers.CLIPTextModel,
    }.items():
        folder = Path("owner", name)
        folder.mkdir(parents=True)
        shutil.copy(packed / name / "config.json", folder)
        with pytest.raises(OSError, match="no file named"):
            model.from_pretrained(str(folder))


def test_without_stores_all_is_as_before(saved: Path, packed: Path, tmp_path: Path) -> None:
    model = diffusers.AutoencoderKL
    with pytest.raises(OSError, match="no file named"):
        model.from_pretrained(packed / "vae")
    bf16torch.patch_diffusers()
    model.from_pretrained(packed / "vae")
    bf16torch.unpatch_diffusers()
    bf16torch.unpatch_diffusers()
    with pytest.raises(OSError, match="no file named"):
        model.from_pretrained(packed / "vae")
    bf16torch.patch_diffusers()
    try:
        assert_same(load(saved), load(packed))
        (tmp_path / "config.json").write_bytes((packed / "vae" / "config.json").read_bytes())
        with pytest.raises(OSError, match="no file named"):
            model.from_pretrained(tmp_path)
    finally:
        bf16torch.unpatch_diffusers()


#: Loads a pipeline, and a model of it, by the bare name of a repository.
BARE = """
import sys, torch, bf16codecs.torch
from diffusers import DiffusionPipeline, UNet2DConditionModel
bf16codecs.torch.patch_diffusers()
nothing = dict.fromkeys(("tokenizer", "safety_checker", "feature_extractor"))
theirs, ours = (DiffusionPipeline.from_pretrained(path, **nothing) for path in sys.argv[1:])
pairs = [(getattr(ours, name), getattr(theirs, name)) for name in ("unet", "vae", "text_encoder")]
pairs.append((UNet2DConditionModel.from_pretrained(sys.argv[2], subfolder="unet"), theirs.unet))
for one, other in pairs:
    for key, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key
"""


def test_repositories(hub: Hub, saved: Path, packed: Path, tmp_path: Path) -> None:
    """Pipelines are downloaded by diffusers: their stores are links in its cache."""
    commit = hub.root / hub.commits["main"]
    commit.rmdir()
    shutil.copytree(packed, commit)
    status, out = run_at(hub, tmp_path, BARE, saved, "owner/name")
    assert status == 0, out
