"""Every bundled model has the number of parameters that was published."""

import pytest

from profiles.model import known_models, load_model

# Totals that Hugging Face prints beside each repository's safetensors files. It counts a
# tied language head of Qwen3 twice, which is taken off here.
SAFETENSORS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "codellama/CodeLlama-34b-hf": 33_743_970_304,
    "01-ai/Yi-34B": 34_388_917_248,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 751_632_384 - 151_936 * 1024,
    "Qwen/Qwen3-1.7B": 2_031_739_904 - 151_936 * 2048,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-pt": 999_885_952,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-1.3b": 1_315_758_080,
}

# Rounded totals, the unit of their last digit, and where they are published.
ROUNDED = {
    "codellama/CodeLlama-13b-hf": (13e9, 1e9, "model card"),
    "google/gemma-3-4b-pt": (3.884e9, 1e6, "arXiv 2503.19786, table 1, without vision"),
    "google/gemma-3-12b-pt": (11.771e9, 1e6, "arXiv 2503.19786, table 1, without vision"),
    "google/gemma-3-27b-pt": (27.016e9, 1e6, "arXiv 2503.19786, table 1, without vision"),
    "deepseek-ai/DeepSeek-V3": (671e9, 1e9, "model card"),
    "deepseek-ai/DeepSeek-R1": (671e9, 1e9, "model card"),
    "moonshotai/Kimi-K2-Instruct": (
        1.02647e12,
        1e7,
        "safetensors, with a scale per block",
    ),
    "openai/gpt-oss-20b": (20.91e9, 1e7, "arXiv 2508.10925, table 1"),
    "openai/gpt-oss-120b": (116.83e9, 1e7, "arXiv 2508.10925, table 1"),
    "zai-org/GLM-4.5-Air": (106e9, 1e9, "model card"),
    "zai-org/GLM-4.5": (355e9, 1e9, "model card"),
    "facebook/opt-6.7b": (6.7e9, 1e8, "arXiv 2205.01068, table 1"),
    "facebook/opt-13b": (13e9, 1e9, "arXiv 2205.01068, table 1"),
    "facebook/opt-30b": (30e9, 1e9, "arXiv 2205.01068, table 1"),
    "facebook/opt-66b": (66e9, 1e9, "arXiv 2205.01068, table 1"),
    "facebook/opt-175b": (175e9, 1e9, "arXiv 2205.01068, table 1"),
    "ibm-granite/granite-3.1-3b-a800m-instruct": (3.3e9, 1e8, "model card"),
}

# Other lengths, windows, types and training of the models above: name, then base.
SAME_SIZE = {
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": "Llama-3.1-8B",
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8": "Llama-3.1-70B",
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": "Llama-3.1-70B",
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": "Llama-3.3-70B-Instruct",
    "casperhansen/llama-3.3-70b-instruct-awq": "Llama-3.3-70B-Instruct",
    "nvidia/Llama-3.3-70B-Instruct-FP4": "Llama-3.3-70B-Instruct",
    "TheBloke/CodeLlama-34B-Instruct-AWQ": "CodeLlama-34b-hf",
    "TheBloke/Yi-34B-AWQ": "Yi-34B",
    "Qwen/Qwen2-7B-Instruct": "Qwen2-7B",
    **{
        f"Qwen/Qwen2.5-{size}-Instruct{kind}": f"Qwen2.5-{size}"
        for size in ("7B", "14B", "32B", "72B")
        for kind in ("", "-AWQ")
    },
    "Qwen/Qwen2.5-1.5B-Instruct": "Qwen2.5-1.5B",
    **{
        f"Qwen/Qwen3-{size}-FP8": f"Qwen3-{size}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
    **{f"Qwen/Qwen3-{n}-AWQ": f"Qwen3-{n}" for n in ("4B", "8B", "14B", "32B")},
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "Qwen3-30B-A3B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-30B-A3B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8": "Qwen3-30B-A3B",
    "microsoft/Phi-3-mini-128k-instruct": "Phi-3-mini-4k-instruct",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "Qwen2.5-7B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen2.5-14B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "Qwen2.5-32B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "Llama-3.1-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "Llama-3.1-70B",
}

# Active parameters of model cards (gpt-oss: its table 1), in billions, and how many
# tables of vocabulary by hidden size that figure leaves out.
ACTIVE = {
    "mistralai/Mixtral-8x7B-v0.1": (12.9, 0),
    "mistralai/Mixtral-8x22B-v0.1": (39, 0),
    "Qwen/Qwen3-30B-A3B": (3.3, 0),
    "Qwen/Qwen3-235B-A22B": (22, 0),
    "deepseek-ai/DeepSeek-V2-Lite": (2.4, 1),
    "deepseek-ai/DeepSeek-V3": (37, 0),
    "moonshotai/Kimi-K2-Instruct": (32, 1),
    "openai/gpt-oss-20b": (3.61, 1),
    "openai/gpt-oss-120b": (5.13, 1),
    "zai-org/GLM-4.5-Air": (12, 2),
    "zai-org/GLM-4.5": (32, 2),
    "ibm-granite/granite-3.1-3b-a800m-instruct": (0.8, 1),
}


@pytest.mark.parametrize(("name", "num_params"), SAFETENSORS.items())
def test_parameters_follow_from_the_architecture(name: str, num_params: int) -> None:
    """The count from layers and sizes is the published one to the last parameter."""
    assert load_model(name).num_params == num_params


@pytest.mark.parametrize(("name", "published"), ROUNDED.items())
def test_parameters_agree_with_a_rounded_figure(
    name: str, published: tuple[float, float, str]
) -> None:
    """Of a round figure the count is within a percent, or rounds to it."""
    total, unit, _ = published

    assert load_model(name).num_params == pytest.approx(total, rel=0.01, abs=unit / 2)


@pytest.mark.parametrize(("name", "base"), SAME_SIZE.items())
def test_a_variant_has_the_size_of_its_base(name: str, base: str) -> None:
    """Quantising, distilling or stretching a model adds no parameters."""
    assert load_model(name).num_params == load_model(base).num_params


def test_every_bundled_model_is_checked_against_a_published_total() -> None:
    """No model enters the table without a published parameter count."""
    assert set(known_models()) == {*SAFETENSORS, *ROUNDED, *SAME_SIZE}


@pytest.mark.parametrize(("name", "published"), ACTIVE.items())
def test_active_parameters_are_those_published(
    name: str, published: tuple[float, int]
) -> None:
    """Without the experts that a token skips the published active count remains."""
    model = load_model(name)
    billions, num_left_out = published
    num_active = model.num_active_params - num_left_out * model.num_lm_head_params

    assert num_active / 1e9 == pytest.approx(billions, rel=0.025)


def test_dense_models_are_active_as_a_whole() -> None:
    """Only where there are experts does a token skip some parameters."""
    for model in map(load_model, known_models()):
        has_idle = model.num_active_params < model.num_params

        assert has_idle == model.has_experts
