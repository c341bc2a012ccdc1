package cost

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// maxConfig is the largest size of a config.json in bytes; real ones have about a thousand.
const maxConfig = 1 << 20

// ReadConfig reads an architecture from a Hugging Face config.json. It supports the model types deepseek_v2,
// deepseek_v3, gemma, gpt2, gpt_neox, gpt_oss, llama, mistral, mixtral, olmoe, opt, phi3, qwen2, qwen3 and qwen3_moe.
// The model has no Name. Missing optional fields have the defaults of the library transformers. Layers for multi-token
// prediction (num_nextn_predict_layers) do not count.
//
// It returns an error for other model types, for experts in a type that has none and for unknown variants, whose
// parameters it would count wrongly, and for a size that is missing, not an integer or out of range. The error names
// the field.
func ReadConfig(r io.Reader) (Model, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return Model{}, fmt.Errorf("cost: config.json: %w", err)
	}
	if len(text) > maxConfig {
		return Model{}, fmt.Errorf("cost: config.json has more than %d bytes: give the file beside the model's weights",
			maxConfig)
	}
	c := config{names: map[string]string{}}
	if err := json.Unmarshal(text, &c.fields); err != nil {
		return Model{}, fmt.Errorf("cost: config.json: %w", err)
	}
	m := c.model()
	if c.err != nil {
		return Model{}, c.err
	}
	if err := m.check(); err != nil {
		c.fail(c.names[err.field], "%s", err.problem)
		return Model{}, c.err
	}
	return m, nil
}

// types are the supported model types, and whether they have experts.
var types = map[string]bool{"deepseek_v2": true, "deepseek_v3": true, "gemma": false, "gpt2": false, "gpt_neox": false,
	"gpt_oss": true, "llama": false, "mistral": false, "mixtral": true, "olmoe": true, "opt": false, "phi3": false,
	"qwen2": false, "qwen3": false, "qwen3_moe": true}

func (c *config) model() Model {
	kind := c.text("model_type", "")
	experts, ok := types[kind]
	if !ok {
		names := slices.Sorted(maps.Keys(types))
		last := len(names) - 1
		c.fail("model_type", "is %.60q: supported are %s and %s", kind, strings.Join(names[:last], ", "), names[last])
		return Model{}
	}
	for _, name := range []string{"num_local_experts", "num_experts", "n_routed_experts"} {
		if !experts && c.has(name) {
			c.fail(name, "is %.40s: models of type %s have no experts", c.fields[name], kind)
		}
	}
	switch kind {
	case "deepseek_v2", "deepseek_v3":
		return c.deepseek(kind)
	case "gpt2":
		return c.gpt2()
	case "gpt_neox":
		return c.neox()
	case "opt":
		return c.opt()
	}
	return c.llama(kind)
}

// llama reads the architecture of Llama and of similar models.
func (c *config) llama(kind string) Model {
	m := c.sizes()
	switch kind {
	case "llama", "olmoe", "phi3":
		m.KVHeads = c.optional("KVHeads", "num_key_value_heads")
	default: // its default is not Heads
		m.KVHeads = c.size("KVHeads", "num_key_value_heads")
	}
	switch kind {
	case "gemma", "gpt_oss", "qwen3": // its default is not Width/Heads
		m.HeadWidth = c.size("HeadWidth", "head_dim")
	default:
		m.HeadWidth = c.optional("HeadWidth", "head_dim")
	}
	if kind == "gemma" {
		m.Tied, m.Activation = c.flag("tie_word_embeddings", true), c.activation("hidden_act", "gelu")
	}
	switch kind {
	case "gemma", "gpt_oss", "llama", "olmoe", "qwen3", "qwen3_moe":
		m.QKVBias = c.flag("attention_bias", kind == "gpt_oss")
		m.OutBias = m.QKVBias
		m.MLPBias = kind == "gpt_oss" || kind == "llama" && c.flag("mlp_bias", false)
	case "qwen2":
		m.QKVBias = true
	}
	switch kind {
	case "qwen3", "qwen3_moe":
		m.QKNorm = "head"
	case "olmoe":
		m.QKNorm = "all"
	}
	if !types[kind] {
		m.Hidden = c.size("Hidden", "intermediate_size")
		return m
	}
	name, hidden := "num_local_experts", "intermediate_size"
	switch kind {
	case "olmoe":
		name = "num_experts"
	case "qwen3_moe":
		name, hidden = "num_experts", "moe_intermediate_size"
		c.one("decoder_sparse_step")
		if list := string(c.fields["mlp_only_layers"]); c.has("mlp_only_layers") && list != "[]" {
			c.fail("mlp_only_layers", "is %.40s: only [] is supported", list)
		}
	case "gpt_oss":
		m.RouterBias, m.Sinks = true, true
	}
	m.Experts, m.ExpertHidden = c.size("Experts", name), c.size("ExpertHidden", hidden)
	m.ExpertsPerToken = c.size("ExpertsPerToken", "num_experts_per_tok")
	return m
}

// deepseek reads the architecture of DeepSeek-V2 and V3.
func (c *config) deepseek(kind string) Model {
	c.require("attention_bias", false)
	c.require("mlp_bias", false)
	c.one("moe_layer_freq")
	m := c.sizes()
	m.Hidden = c.size("Hidden", "intermediate_size")
	m.KVHeads = c.optional("KVHeads", "num_key_value_heads")
	m.KVRank, m.QueryRank = c.size("KVRank", "kv_lora_rank"), c.optional("QueryRank", "q_lora_rank")
	if c.fields["q_lora_rank"] == nil { // its default is not null
		c.fail("q_lora_rank", "is missing: give an integer or null")
	}
	m.RopeWidth, m.ValueWidth = c.size("RopeWidth", "qk_rope_head_dim"), c.size("ValueWidth", "v_head_dim")
	m.HeadWidth = c.size("HeadWidth", "qk_nope_head_dim") + m.RopeWidth
	m.Experts = c.size("Experts", "n_routed_experts")
	m.ExpertHidden = c.size("ExpertHidden", "moe_intermediate_size")
	m.ExpertsPerToken = c.size("ExpertsPerToken", "num_experts_per_tok")
	m.SharedExperts = c.whole("SharedExperts", "n_shared_experts")
	m.DenseLayers = c.whole("DenseLayers", "first_k_dense_replace")
	m.RouterBias = kind == "deepseek_v3" // e_score_correction_bias
	return m
}

// sizes reads what Llama and its relatives name alike.
func (c *config) sizes() Model {
	return Model{
		Layers: c.size("Layers", "num_hidden_layers"), Width: c.size("Width", "hidden_size"),
		Heads: c.size("Heads", "num_attention_heads"), Vocab: c.size("Vocab", "vocab_size"),
		Context: c.size("Context", "max_position_embeddings"), Gated: true,
		Tied: c.flag("tie_word_embeddings", false), Activation: c.activation("hidden_act", "silu"),
	}
}

func (c *config) gpt2() Model {
	c.require("add_cross_attention", false)
	context := c.size("Context", "n_positions")
	c.names["PositionRows"] = "n_positions"
	return Model{
		Layers: c.size("Layers", "n_layer"), Width: c.size("Width", "n_embd"), Heads: c.size("Heads", "n_head"),
		Hidden: c.optional("Hidden", "n_inner"), Vocab: c.size("Vocab", "vocab_size"), Context: context,
		PositionRows: context,
		Tied:         c.flag("tie_word_embeddings", true), QKVBias: true, OutBias: true, MLPBias: true, NormBias: true,
		Activation: c.activation("activation_function", "gelu"),
	}
}

func (c *config) neox() Model {
	bias := c.flag("attention_bias", true)
	return Model{
		Layers: c.size("Layers", "num_hidden_layers"), Width: c.size("Width", "hidden_size"),
		Heads:  c.size("Heads", "num_attention_heads"),
		Hidden: c.size("Hidden", "intermediate_size"), Vocab: c.size("Vocab", "vocab_size"),
		Context: c.size("Context", "max_position_embeddings"),
		Tied:    c.flag("tie_word_embeddings", false), QKVBias: bias, OutBias: bias, MLPBias: true, NormBias: true,
		Activation: c.activation("hidden_act", "gelu"),
	}
}

func (c *config) opt() Model {
	c.require("do_layer_norm_before", true)
	c.require("layer_norm_elementwise_affine", true)
	c.require("_remove_final_layer_norm", false)
	width, context, bias := c.size("Width", "hidden_size"), c.size("Context", "max_position_embeddings"),
		c.flag("enable_bias", true)
	if narrow := c.optional("", "word_embed_proj_dim"); narrow != 0 && narrow != width {
		c.fail("word_embed_proj_dim", "is %d and hidden_size %d: only equal widths are supported", narrow, width)
	}
	c.names["PositionRows"] = "max_position_embeddings"
	return Model{
		Layers: c.size("Layers", "num_hidden_layers"), Width: width, Heads: c.size("Heads", "num_attention_heads"),
		Hidden: c.size("Hidden", "ffn_dim"), Vocab: c.size("Vocab", "vocab_size"), Context: context,
		PositionRows: context + 2, // the first two are for padding
		Tied:         c.flag("tie_word_embeddings", true), QKVBias: bias, OutBias: bias, MLPBias: bias, NormBias: true,
		Activation: c.activation("activation_function", "relu"),
	}
}

// config reads a config.json. Its methods return a field's value and record the first error.
type config struct {
	fields map[string]json.RawMessage
	names  map[string]string // from a field of Model to its name in this file
	err    error
}

func (c *config) fail(name, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("cost: config.json: %s %s", name, fmt.Sprintf(format, args...))
	}
}

// has reports whether a field is present and not null.
func (c *config) has(name string) bool {
	return c.fields[name] != nil && string(c.fields[name]) != "null"
}

// size returns the positive integer for a field of Model.
func (c *config) size(field, name string) int {
	if !c.has(name) {
		c.fail(name, "is missing: give an integer")
	}
	return c.optional(field, name)
}

// optional is size for a field that may be missing, and is 0 then.
func (c *config) optional(field, name string) int {
	c.names[field] = name
	if !c.has(name) {
		return 0
	}
	var n int
	if json.Unmarshal(c.fields[name], &n) != nil || n < 1 {
		c.fail(name, "is %.40s: give a positive integer", c.fields[name])
	}
	return n
}

// whole is size for a field that may be 0.
func (c *config) whole(field, name string) int {
	c.names[field] = name
	if string(c.fields[name]) == "0" {
		return 0
	}
	return c.size(field, name)
}

// one records an error unless a number is missing or 1.
func (c *config) one(name string) {
	if n := c.optional("", name); n > 1 {
		c.fail(name, "is %d: only 1 is supported", n)
	}
}

func (c *config) flag(name string, value bool) bool {
	if c.has(name) && json.Unmarshal(c.fields[name], &value) != nil {
		c.fail(name, "is %.40s: give true or false", c.fields[name])
	}
	return value
}

func (c *config) text(name, value string) string {
	if c.has(name) && json.Unmarshal(c.fields[name], &value) != nil {
		c.fail(name, "is %.40s: give a string", c.fields[name])
	}
	return value
}

// require records an error unless a flag has the value that is supported, which is its default.
func (c *config) require(name string, want bool) {
	if got := c.flag(name, want); got != want {
		c.fail(name, "is %v: only %v is supported", got, want)
	}
}

// activation reads the name of an activation, without the variants of its approximation.
func (c *config) activation(name, value string) string {
	value = c.text(name, value)
	switch {
	case slices.Contains([]string{"gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh"}, value):
		return "gelu"
	case value == "swish":
		return "silu"
	case !slices.Contains([]string{"silu", "relu"}, value):
		c.fail(name, "is %.60q: supported are gelu, silu and relu", value)
	}
	return value
}
