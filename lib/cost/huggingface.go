package cost

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// maxConfig is the most bytes that a config.json may have; a real one has about a thousand.
const maxConfig = 1 << 20

// ReadConfig returns the architecture that a Hugging Face config.json describes, of the model types gemma, gpt2,
// gpt_neox, llama, mistral, opt, phi3 and qwen2. The model has no Name. Flags, activations and what follows from other
// sizes may be missing, and are then what the library transformers takes them for.
//
// An unknown model type, a mixture of experts and an unknown variant of a known type are errors, since their parameters
// would be counted wrongly. So is a size that is missing, no whole number, or out of range; the error names the field.
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

func (c *config) model() Model {
	for _, experts := range []string{"num_local_experts", "num_experts", "n_routed_experts"} {
		if c.has(experts) {
			c.fail(experts, "is %.40s: mixtures of experts are not known", c.fields[experts])
		}
	}
	switch kind := c.text("model_type", ""); kind {
	case "gemma", "llama", "mistral", "phi3", "qwen2":
		return c.llama(kind)
	case "gpt2":
		return c.gpt2()
	case "gpt_neox":
		return c.neox()
	case "opt":
		return c.opt()
	default:
		c.fail("model_type", "is %.60q: known are gemma, gpt2, gpt_neox, llama, mistral, opt, phi3 and qwen2", kind)
		return Model{}
	}
}

// llama reads the architecture of Llama, and of its kin that differ in a detail.
func (c *config) llama(kind string) Model {
	m := Model{
		Layers:    c.size("Layers", "num_hidden_layers"),
		Width:     c.size("Width", "hidden_size"),
		Heads:     c.size("Heads", "num_attention_heads"),
		HeadWidth: c.optional("HeadWidth", "head_dim"),
		Hidden:    c.size("Hidden", "intermediate_size"),
		Vocab:     c.size("Vocab", "vocab_size"),
		Context:   c.size("Context", "max_position_embeddings"),
		Gated:     true,
	}
	switch kind {
	case "llama", "phi3":
		m.KVHeads = c.optional("KVHeads", "num_key_value_heads")
	default: // where it is not Heads if it is left out
		m.KVHeads = c.size("KVHeads", "num_key_value_heads")
	}
	switch kind {
	case "gemma":
		m.HeadWidth = c.size("HeadWidth", "head_dim") // nor is this Width/Heads
		m.Tied, m.Activation = c.flag("tie_word_embeddings", true), c.activation("hidden_act", "gelu")
	default:
		m.Tied, m.Activation = c.flag("tie_word_embeddings", false), c.activation("hidden_act", "silu")
	}
	switch kind {
	case "gemma", "llama":
		m.QKVBias = c.flag("attention_bias", false)
		m.OutBias = m.QKVBias
		m.MLPBias = kind == "llama" && c.flag("mlp_bias", false)
	case "qwen2":
		m.QKVBias = true
	}
	return m
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
		c.fail("word_embed_proj_dim", "is %d and hidden_size %d: a table of another width is not known", narrow, width)
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

// config is a config.json being read. Its methods return a field's value, and keep the first error.
type config struct {
	fields map[string]json.RawMessage
	names  map[string]string // of the fields of Model in this file
	err    error
}

func (c *config) fail(name, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("cost: config.json: %s %s", name, fmt.Sprintf(format, args...))
	}
}

// has says whether a field is there; null is as if it were not.
func (c *config) has(name string) bool {
	return c.fields[name] != nil && string(c.fields[name]) != "null"
}

// size returns a whole number of at least 1, which is this field of Model.
func (c *config) size(field, name string) int {
	if !c.has(name) {
		c.fail(name, "is missing: give a whole number")
	}
	return c.optional(field, name)
}

// optional is size, but returns 0 if the field is not there.
func (c *config) optional(field, name string) int {
	c.names[field] = name
	if !c.has(name) {
		return 0
	}
	var n int
	if json.Unmarshal(c.fields[name], &n) != nil || n < 1 {
		c.fail(name, "is %.40s: give a whole number from 1", c.fields[name])
	}
	return n
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

// require makes it an error if a flag, which is want where it is not there, is not.
func (c *config) require(name string, want bool) {
	if got := c.flag(name, want); got != want {
		c.fail(name, "is %v: only %v is known", got, want)
	}
}

// activation reads the name of an activation, all of whose approximations are one here.
func (c *config) activation(name, value string) string {
	value = c.text(name, value)
	switch {
	case slices.Contains([]string{"gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh"}, value):
		return "gelu"
	case value == "swish":
		return "silu"
	case !slices.Contains([]string{"silu", "relu"}, value):
		c.fail(name, "is %.60q: known are gelu, silu and relu", value)
	}
	return value
}
