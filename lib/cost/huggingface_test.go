package cost

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shardbook/shardbook/internal/must"
)

type hfConfig struct {
	Preset string
	Config json.RawMessage
}

// The config.json of a published model gives its preset.
func TestReadConfig(t *testing.T) {
	for _, c := range read[hfConfig](t, "configs.json") {
		got, err := ReadConfig(strings.NewReader(string(c.Config)))
		if err != nil {
			t.Errorf("%s: %v", c.Preset, err)
			continue
		}
		want := must.Get(Preset(c.Preset))(t)
		// The preset leaves out fields that have their defaults.
		want.Name = ""
		want.KVHeads, got.KVHeads = want.KV(), got.KV()
		want.HeadWidth, got.HeadWidth = want.HeadDim(), got.HeadDim()
		want.Hidden, got.Hidden = want.MLPWidth(), got.MLPWidth()
		if got != want {
			t.Errorf("%s:\n%+v, want\n%+v", c.Preset, got, want)
		}
	}
}

func TestReadConfigErrors(t *testing.T) {
	const sizes = `"num_hidden_layers":2,"hidden_size":12,"num_attention_heads":4,` +
		`"vocab_size":32,"max_position_embeddings":8`
	const llama = `"model_type":"llama","intermediate_size":16,` + sizes
	const gpt2 = `"model_type":"gpt2","n_layer":2,"n_embd":12,"n_head":4,"vocab_size":32,"n_positions":8`
	const opt = `"model_type":"opt","ffn_dim":16,` + sizes
	const mixtral = `"model_type":"mixtral","num_key_value_heads":2,"intermediate_size":16,"num_local_experts":4,` +
		`"num_experts_per_tok":2,` + sizes
	const qwen = `"model_type":"qwen3_moe","num_key_value_heads":2,"moe_intermediate_size":16,"num_experts":4,` +
		`"num_experts_per_tok":2,` + sizes
	const deepseek = `"model_type":"deepseek_v3","kv_lora_rank":5,"q_lora_rank":null,"qk_nope_head_dim":3,` +
		`"qk_rope_head_dim":2,"v_head_dim":3,"intermediate_size":16,"moe_intermediate_size":8,"n_routed_experts":4,` +
		`"num_experts_per_tok":2,"n_shared_experts":0,"first_k_dense_replace":1,` + sizes
	const types = ": supported are deepseek_v2, deepseek_v3, gemma, gpt2, gpt_neox, gpt_oss, llama, mistral, mixtral, " +
		"olmoe, opt, phi3, qwen2, qwen3 and qwen3_moe"
	for _, c := range []struct{ text, want string }{
		{`{` + llama + `}`, ""},
		{`{` + llama + `,"num_key_value_heads":null,"head_dim":null,"num_experts":null}`, ""},
		{`{` + gpt2 + `,"n_inner":null}`, ""},
		{`{` + opt + `}`, ""},
		// Of two fields with one name, the last counts.
		{``, ": unexpected end of JSON input"},
		{`[]`, ": json: cannot unmarshal array into Go value of type map[string]json.RawMessage"},
		{`{}`, `: model_type is ""` + types},
		{`null`, `: model_type is ""` + types},
		{`{"model_type":7}`, ": model_type is 7: give a string"},
		{`{"model_type":"bert"}`, `: model_type is "bert"` + types},
		{`{"model_type":"mistral","num_local_experts":8}`,
			": num_local_experts is 8: models of type mistral have no experts"},
		{`{` + llama + `,"num_experts":4}`, ": num_experts is 4: models of type llama have no experts"},
		{`{` + mixtral + `}`, ""},
		{`{` + mixtral + `,"num_local_experts":null}`, ": num_local_experts is missing: give an integer"},
		{`{` + mixtral + `,"num_experts_per_tok":5}`,
			": num_experts_per_tok is 5: set it to at least 1 and at most the 4 experts"},
		{`{` + mixtral + `,"intermediate_size":4194304}`, ": intermediate_size is 4194304, which with 4 experts is " +
			"16777216 in total: choose at most 4194304 in total"},
		{`{` + qwen + `,"mlp_only_layers":[],"decoder_sparse_step":1}`, ""},
		{`{` + qwen + `,"mlp_only_layers":[0]}`, ": mlp_only_layers is [0]: only [] is supported"},
		{`{` + qwen + `,"decoder_sparse_step":2}`, ": decoder_sparse_step is 2: only 1 is supported"},
		{`{` + deepseek + `}`, ""},
		{`{` + deepseek + `,"first_k_dense_replace":2}`,
			": first_k_dense_replace is 2 of 2 layers: leave at least one with experts"},
		{`{` + deepseek + `,"first_k_dense_replace":null}`, ": first_k_dense_replace is missing: give an integer"},
		{`{` + deepseek + `,"qk_nope_head_dim":9223372036854775807}`,
			": qk_nope_head_dim is -9223372036854775807: set it to at least 0"},
		{`{` + deepseek + `,"num_key_value_heads":2}`,
			": num_key_value_heads is 2, but latent attention has as many as its 4 heads: set it to 0"},
		{`{` + deepseek + `,"attention_bias":true}`, ": attention_bias is true: only false is supported"},
		{`{` + deepseek + `,"moe_layer_freq":2}`, ": moe_layer_freq is 2: only 1 is supported"},
		{strings.Replace(`{`+deepseek+`}`, `"q_lora_rank":null,`, "", 1),
			": q_lora_rank is missing: give an integer or null"},
		{`{"model_type":"llama"}`, ": num_hidden_layers is missing: give an integer"},
		{`{` + llama + `,"hidden_size":null}`, ": hidden_size is missing: give an integer"},
		{`{` + llama + `,"hidden_size":-12}`, ": hidden_size is -12: give a positive integer"},
		{`{` + llama + `,"hidden_size":12.5}`, ": hidden_size is 12.5: give a positive integer"},
		{`{` + llama + `,"hidden_size":"12"}`, `: hidden_size is "12": give a positive integer`},
		{`{` + llama + `,"hidden_size":1e99}`, ": hidden_size is 1e99: give a positive integer"},
		{`{` + llama + `,"hidden_size":1048577}`, ": hidden_size is 1048577: set it to at most 1048576"},
		{`{` + llama + `,"num_key_value_heads":0}`, ": num_key_value_heads is 0: give a positive integer"},
		{`{` + llama + `,"num_key_value_heads":3}`,
			": num_key_value_heads is 3, which does not divide the 4 heads: choose a divisor"},
		{`{` + llama + `,"num_attention_heads":5}`,
			": num_attention_heads is 5, which does not divide the width 12: choose a divisor, or set the width of a " +
				"head"},
		{`{` + llama + `,"tie_word_embeddings":1}`, ": tie_word_embeddings is 1: give true or false"},
		{`{` + llama + `,"hidden_act":"mish"}`, `: hidden_act is "mish": supported are gelu, silu and relu`},
		{`{` + gpt2 + `,"vocab_size":1}`, ": vocab_size is 1: set it to at least 2"},
		{`{` + gpt2 + `,"add_cross_attention":true}`, ": add_cross_attention is true: only false is supported"},
		{`{` + opt + `,"do_layer_norm_before":false}`, ": do_layer_norm_before is false: only true is supported"},
		{`{` + opt + `,"max_position_embeddings":268435456}`,
			": max_position_embeddings is 268435458: set it to at most 268435456"},
		{`{` + opt + `,"max_position_embeddings":9223372036854775807}`,
			": max_position_embeddings is 9223372036854775807: set it to at most 268435456"},
		{`{` + opt + `,"word_embed_proj_dim":8}`,
			": word_embed_proj_dim is 8 and hidden_size 12: only equal widths are supported"},
		{strings.Replace(`{`+llama+`}`, "llama", "mistral", 1),
			": num_key_value_heads is missing: give an integer"},
		{strings.Replace(`{`+llama+`,"num_key_value_heads":1}`, "llama", "gemma", 1),
			": head_dim is missing: give an integer"},
		{strings.Repeat(" ", maxConfig) + "{}", " has more than 1048576 bytes: give the file beside the model's " +
			"weights"},
	} {
		m, err := ReadConfig(strings.NewReader(c.text))
		want := c.want
		if want != "" {
			want = "cost: config.json" + want
		}
		if message(err) != want {
			t.Errorf("%.200s: error\n%q, want\n%q", c.text, message(err), want)
		}
		if err == nil != (m != Model{}) {
			t.Errorf("%.200s: error %v and model %+v", c.text, err, m)
		}
	}
	_, err := ReadConfig(iotest.ErrReader(errors.New("disk on fire")))
	check(t, err, "cost: config.json: disk on fire")
}

func TestReadConfigBiases(t *testing.T) {
	for _, c := range []struct {
		text string
		want Model
	}{
		{`"model_type":"llama","attention_bias":true,"mlp_bias":true`,
			Model{QKVBias: true, OutBias: true, MLPBias: true}},
		{`"model_type":"mistral","attention_bias":true,"mlp_bias":true`, Model{}}, // Mistral ignores these
		{`"model_type":"gemma","head_dim":3,"attention_bias":true,"mlp_bias":true`,
			Model{QKVBias: true, OutBias: true}},
		{`"model_type":"qwen2"`, Model{QKVBias: true}},
		{`"model_type":"qwen3","head_dim":3,"attention_bias":true`, Model{QKVBias: true, OutBias: true}},
		{`"model_type":"gpt_oss","head_dim":3,"num_local_experts":2,"num_experts_per_tok":1`,
			Model{QKVBias: true, OutBias: true, MLPBias: true}},
		{`"model_type":"phi3"`, Model{}},
		{`"model_type":"gpt_neox","attention_bias":false`, Model{MLPBias: true, NormBias: true}},
		{`"model_type":"opt","ffn_dim":16,"enable_bias":false`, Model{NormBias: true}},
	} {
		m, err := ReadConfig(strings.NewReader(`{` + c.text +
			`,"num_hidden_layers":2,"hidden_size":12,"num_attention_heads":4,` +
			`"num_key_value_heads":2,"intermediate_size":16,"vocab_size":32,"max_position_embeddings":8}`))
		if got := (Model{QKVBias: m.QKVBias, OutBias: m.OutBias, MLPBias: m.MLPBias,
			NormBias: m.NormBias}); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
	}
}

// For any input, ReadConfig returns a valid model or an error.
func FuzzReadConfig(f *testing.F) {
	for _, c := range read[hfConfig](f, "configs.json") {
		f.Add([]byte(c.Config))
	}
	f.Add([]byte(`{"model_type":"opt","max_position_embeddings":9223372036854775807}`))
	f.Add([]byte(`{"model_type":["llama"],"num_experts":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ReadConfig(strings.NewReader(string(text)))
		if err != nil {
			if m != (Model{}) || !strings.HasPrefix(err.Error(), "cost: config.json") {
				t.Errorf("%+v, %v", m, err)
			}
			return
		}
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		if m.Params().Total() <= 0 {
			t.Errorf("%+v has %d parameters", m, m.Params().Total())
		}
	})
}
