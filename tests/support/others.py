"""Other people's models, tiny and random, saved as their folders on the hub are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    BertConfig,
    BertModel,
    ColModernVBertConfig,
    ColModernVBertForRetrieval,
    ColPaliConfig,
    ColPaliForRetrieval,
    ColQwen2Config,
    ColQwen2ForRetrieval,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
)

import randslot
from randslot.model.backbone import make_tokenizer
from randslot.model.families import find_family

QWEN_TOKENS = find_family("qwen3-vl").special_tokens
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZE = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 24}
# As Qwen3-VL-Embedding has it: an instruction as the system's words, the page or the query as the user's.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}<|endoftext|>"
)
QUERY_PROMPT = "Retrieve images or text relevant to the user's query."
PAGE_PROMPT = "Represent the user's input."


def lively(model: torch.nn.Module) -> None:
    """Scale the weights up, so that vectors of different inputs differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)


def write(folder: Path, name: str, values: Any) -> None:
    (folder / name).write_text(json.dumps(values, indent=2), encoding="utf-8")


def change(folder: Path, name: str, **values: Any) -> None:
    found = json.loads((folder / name).read_text(encoding="utf-8"))
    write(folder, name, found | values)


# -- late interaction over images, as transformers has it


def save_colpali(folder: Path) -> Path:
    """ColPali: PaliGemma with a projection; four patches a page and the words of its prompt."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(("<pad>", "<eos>", "<bos>", "<image>"), "<eos>")
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    vlm = AutoConfig.for_model(
        "paligemma",
        text_config={"model_type": "gemma", "vocab_size": 400, "num_key_value_heads": 1, "head_dim": 16, **TEXT},
        vision_config={"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14, **VISION},
        projection_dim=32,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = ColPaliForRetrieval(ColPaliConfig(vlm_config=vlm, embedding_dim=16)).eval()
    lively(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    image.image_seq_length = 4
    image.save_pretrained(folder)
    change(folder, "preprocessor_config.json", processor_class="ColPaliProcessor", image_seq_length=4)
    return folder


def save_colqwen2(folder: Path) -> Path:
    """ColQwen2: as many vectors as the page has patches."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(QWEN_TOKENS, "<|im_end|>")
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vlm = AutoConfig.for_model(
        "qwen2_vl",
        text_config={"vocab_size": len(tokenizer), "num_key_value_heads": 1, "rope_parameters": rope, **TEXT},
        vision_config={"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    model = ColQwen2ForRetrieval(ColQwen2Config(vlm_config=vlm, embedding_dim=16)).eval()
    lively(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(size=SIZE).save_pretrained(folder)
    change(folder, "preprocessor_config.json", processor_class="ColQwen2Processor")
    return folder


def save_colmodernvbert(folder: Path) -> Path:
    """ColModernVBERT: a small bidirectional reader; a page is tiles and the whole."""
    from transformers import Idefics3ImageProcessorPil

    torch.manual_seed(0)
    grid = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    names = ("[PAD]", "[SEP]", "[CLS]", "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
    tokenizer = make_tokenizer((*names, *grid), "[SEP]")
    tokenizer.padding_side = "right"
    vlm = AutoConfig.for_model(
        "modernvbert",
        text_config={"model_type": "modernbert", "vocab_size": len(tokenizer), "pad_token_id": 0, **TEXT},
        vision_config={"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8, **VISION},
        pixel_shuffle_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = ColModernVBertForRetrieval(ColModernVBertConfig(vlm_config=vlm, embedding_dim=16)).eval()
    lively(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    edge = {"longest_edge": 32}
    Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size=edge).save_pretrained(folder)
    write(folder, "processor_config.json", {"processor_class": "ColModernVBertProcessor", "image_seq_len": 4})
    change(folder, "preprocessor_config.json", processor_class="ColModernVBertProcessor")
    return folder


# -- the folders of sentence-transformers


def _save_qwen3_vl(folder: Path) -> Path:
    """A backbone with a chat template, as the hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = randslot.tiny("qwen3-vl", seed=0)
    lively(model.encoder.backbone)
    model.encoder.backbone.save_pretrained(folder)
    model.encoder.processors.save(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    change(folder, "preprocessor_config.json", processor_class="Qwen3VLProcessor", size=SIZE)
    return folder


def write_modules(folder: Path, kind: str, modules: dict[str, tuple[str, dict[str, Any]]], **more: Any) -> None:
    """Write what sentence-transformers adds to a folder: modules, their settings, prompts."""
    listed = []
    for i, (name, (type_, config)) in enumerate(modules.items()):
        path = "" if i == 0 else f"{i}_{name}"
        listed.append({"idx": i, "name": str(i), "path": path, "type": type_})
        (folder / path).mkdir(exist_ok=True)
        write(folder / path, "sentence_bert_config.json" if i == 0 else "config.json", config)
    write(folder, "modules.json", listed)
    write(folder, "config_sentence_transformers.json", {"model_type": kind, **more})


TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
POOLING = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
MESSAGES = {"message": {"method": "forward", "method_output_name": "last_hidden_state", "format": "structured"}}


def save_qwen3_vl_embedding(folder: Path) -> Path:
    """Qwen3-VL-Embedding: one vector, that of the last token, with instructions for queries and pages."""
    _save_qwen3_vl(folder)
    write_dense_modules(folder, {"query": QUERY_PROMPT, "document": PAGE_PROMPT})
    return folder


def write_dense_modules(folder: Path, prompts: dict[str, str]) -> None:
    """Write what makes a folder of Qwen3-VL one of sentence-transformers, with one vector: that of the last token."""
    transformer = {
        "transformer_task": "feature-extraction",
        "modality_config": dict.fromkeys(("text", "image", "message"), MESSAGES["message"]),
        "module_output_name": "token_embeddings",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    write_modules(
        folder,
        "SentenceTransformer",
        {
            "Transformer": (TRANSFORMER, transformer),
            "Pooling": (POOLING, {"embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": True}),
            "Normalize": (NORMALIZE, {}),
        },
        prompts=prompts,
        default_prompt_name=None,
        similarity_fn_name="cosine",
    )


def word_piece(words: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of letters and some words, with [CLS] and [SEP] around a text."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [*special, *letters, *(f"##{letter}" for letter in letters), *words]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **{f"{key}_token": token for key, token in names.items()}
    )


def _save_bert(folder: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = word_piece()
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **TEXT)
    model = BertModel(config).eval()
    lively(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_minilm(folder: Path, *, normalize: bool = True, similarity: str | None = None, **prompts: str) -> Path:
    """all-MiniLM: a text model, the mean of its tokens; without `normalize`, vectors are not of unit length."""
    inner = _save_bert(folder.with_name(f"{folder.name}-inner"))
    transformer = Transformer(str(inner))
    modules: list[Any] = [transformer, Pooling(32, "mean")]
    if normalize:
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, prompts=prompts or None, similarity_fn_name=similarity, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def save_colbert(folder: Path, similarity: str | None = None) -> Path:
    """A late-interaction model of text: queries are filled up with [MASK], punctuation of pages is not scored."""
    inner = _save_bert(folder.with_name(f"{folder.name}-inner"))
    expansion: Any = {"strategy": "fixed", "length": 16, "attend": False}
    transformer = Transformer(str(inner), query_expansion=expansion, document_length=48)
    torch.manual_seed(1)
    dense = Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    modules = [transformer, dense, MultiVectorMask(skiplist_words=[".", ","]), Normalize("token_embeddings")]
    model = MultiVectorEncoder(
        modules=modules, prompts={"query": "q: ", "document": "d: "}, similarity_fn_name=similarity, device="cpu"
    )
    model.save_pretrained(str(folder))
    return folder


TASK_TEMPLATE = (
    "{% if task is defined and task == 'query' %}Query: {% endif %}"
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "Describe the image.{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if task is defined and task == 'query' %}{{ '<|endoftext|>' * 10 }}{% endif %}"
)


def save_colqwen_adapter(folder: Path) -> Path:
    """ColQwen as colpali-engine trains it: an adapter on a base elsewhere, with a projection, a mask and a template."""
    from transformers import AutoModel

    base = _save_qwen3_vl(folder.with_name(f"{folder.name}-base"))
    _save_adapter(folder, base, AutoModel.from_pretrained(base))
    (folder / "chat_template.jinja").write_text(TASK_TEMPLATE, encoding="utf-8")
    forward = {"method": "forward", "method_output_name": "last_hidden_state", "format": "structured"}
    transformer = {
        "transformer_task": "feature-extraction",
        "modality_config": dict.fromkeys(("text", "image", "message"), forward),
        "module_output_name": "token_embeddings",
    }
    dense = Dense(64, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    write_modules(
        folder,
        "MultiVectorEncoder",
        {
            "Transformer": (TRANSFORMER, transformer),
            "Dense": ("sentence_transformers.base.modules.dense.Dense", {}),
            "MultiVectorMask": (MASK, {}),
            "Normalize": (NORMALIZE, {"module_input_name": "token_embeddings"}),
        },
        prompts={"query": "", "document": ""},
        default_prompt_name=None,
    )
    dense.save(str(folder / "1_Dense"))
    return folder


MASK = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"


def save_colqwen2_adapter(folder: Path) -> Path:
    """An adapter on ColQwen2 as transformers has it, without modules."""
    base = save_colqwen2(folder.with_name(f"{folder.name}-base"))
    _save_adapter(folder, base, ColQwen2ForRetrieval.from_pretrained(base))
    return folder


def _save_adapter(folder: Path, base: Path, model: PreTrainedModel) -> None:
    """Save a random adapter on a model that was loaded from `base`, with the processors of that."""
    from peft import LoraConfig

    torch.manual_seed(2)
    model.add_adapter(LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    change(folder, "adapter_config.json", base_model_name_or_path=str(base))
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_text((base / name).read_text(encoding="utf-8"), encoding="utf-8")
