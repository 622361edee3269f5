//! Names of tensors in files of Hugging Face, and in GGUF files.

/// Beginnings of names of the text part, and of tensors that are left out: towers, and layers that predict further tokens.
const MODULES: [&str; 3] = ["model.language_model.", "language_model.model.", "transformer."];
const LEFT_OUT: [&str; 4] = ["mtp.", "model.visual.", "multi_modal_projector.", "vision_tower."];

/// Parts of names, the longer ones before those that they contain.
const NAMES: [(&str, &str); 80] = [
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("model.embed_tokens", "token_embd"),
    ("model.wte", "token_embd"),
    ("model.wpe", "position_embd"),
    ("lm_head", "output"),
    ("model.norm", "output_norm"),
    ("model.ln_f", "output_norm"),
    ("model.layers", "blk"),
    ("model.h.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("linear_attn.in_proj_qkvz", "ssm_in"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.router", "ffn_gate_inp"),
    ("router.proj", "ffn_gate_inp"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("post_per_layer_input_norm", "post_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("mlp.experts", "experts"),
    ("block_sparse_moe.experts", "experts"),
    (".experts.gate_up_proj", ".ffn_gate_up_exps.weight"),
    (".experts.down_proj", ".ffn_down_exps.weight"),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
    ("exps_bias", "exps.bias"),
];

/// The architectures whose norm behind the attention has the name that it has in files of Hugging Face, also where it is the one
/// before the feed-forward network.
const POST_NORMS: [&str; 8] = ["gemma2", "gemma3", "gemma4", "gpt-oss", "olmo2", "qwen3next", "qwen35", "qwen35moe"];

/// The name in a GGUF file of a model with so many layers, if the tensor is in it.
pub(super) fn of(name: &str, architecture: &str, layers: usize) -> Option<String> {
    if LEFT_OUT.iter().any(|module| name.starts_with(module)) || name.ends_with(".attn.bias") {
        return None;
    }
    let mut name = name.replace("language_model.lm_head", "lm_head");
    for module in MODULES {
        name = name.replace(module, "model.");
    }
    // Some files of GPT-2 have no module around it.
    if architecture == "gpt2" && !name.starts_with("model.") {
        name = format!("model.{name}");
    }
    let after = if POST_NORMS.contains(&architecture) { "post_attention_norm" } else { "ffn_norm" };
    let name = name.replace("post_attention_layernorm", after);
    let name = NAMES.iter().fold(name, |name, (from, to)| name.replace(from, to));
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    layer.is_none_or(|layer| layer < layers).then_some(name)
}
