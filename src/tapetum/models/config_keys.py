"""Keys of published config.json files that families share and that say nothing about what a model computes."""

from __future__ import annotations

# What training, sampling or older versions of transformers wanted to know, or what other files say again.
IGNORED_KEYS = (
    "_name_or_path", "_sliding_window_pattern", "add_cross_attention", "architectures", "attention_dropout",
    "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "id2label", "initializer_factor", "initializer_range", "is_decoder", "is_encoder_decoder",
    "is_llama_config", "label2id", "length_penalty",
    "max_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits",
    "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "router_aux_loss_coef", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "use_bfloat16", "use_cache",
)  # fmt: skip

# Token ids that processors read from the tokenizer.
TOKEN_KEYS = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
)
