package cost

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
)

type hfConfig struct {
	Preset string
	Config json.RawMessage
}

// The config.json of published models are the presets of their names.
func TestReadConfig(t *testing.T) {
	for _, c := range read[hfConfig](t, "configs.json") {
		got, err := ReadConfig(strings.NewReader(string(c.Config)))
		if err != nil {
			t.Errorf("%s: %v", c.Preset, err)
			continue
		}
		want := must(Preset(c.Preset))(t)
		// The preset leaves out what the file says though it is the default.
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
	const llama = `"model_type":"llama","num_hidden_layers":2,"hidden_size":12,"num_attention_heads":4,"intermediate_size":16,` +
		`"vocab_size":32,"max_position_embeddings":8`
	const gpt2 = `"model_type":"gpt2","n_layer":2,"n_embd":12,"n_head":4,"vocab_size":32,"n_positions":8`
	const opt = `"model_type":"opt","num_hidden_layers":2,"hidden_size":12,"num_attention_heads":4,"ffn_dim":16,"vocab_size":32,` +
		`"max_position_embeddings":8`
	for _, c := range []struct{ text, want string }{
		{`{` + llama + `}`, ""},
		{`{` + llama + `,"num_key_value_heads":null,"head_dim":null,"num_experts":null}`, ""},
		{`{` + gpt2 + `,"n_inner":null}`, ""},
		{`{` + opt + `}`, ""},
		// The last of two fields of a name counts, so a second one changes the first.
		{``, "cost: config.json: unexpected end of JSON input"},
		{`[]`, "cost: config.json: json: cannot unmarshal array into Go value of type map[string]json.RawMessage"},
		{`{}`, `cost: config.json: model_type is "": known are gemma, gpt2, gpt_neox, llama, mistral, opt, phi3 and qwen2`},
		{`null`, `cost: config.json: model_type is "": known are gemma, gpt2, gpt_neox, llama, mistral, opt, phi3 and qwen2`},
		{`{"model_type":7}`, "cost: config.json: model_type is 7: give a string"},
		{`{"model_type":"bert"}`, `cost: config.json: model_type is "bert": known are gemma, gpt2, gpt_neox, llama, mistral, opt, phi3 and qwen2`},
		{`{"model_type":"mixtral","num_local_experts":8}`, "cost: config.json: num_local_experts is 8: mixtures of experts are not known"},
		{`{` + llama + `,"num_experts":4}`, "cost: config.json: num_experts is 4: mixtures of experts are not known"},
		{`{"model_type":"llama"}`, "cost: config.json: num_hidden_layers is missing: give a whole number"},
		{`{` + llama + `,"hidden_size":null}`, "cost: config.json: hidden_size is missing: give a whole number"},
		{`{` + llama + `,"hidden_size":-12}`, "cost: config.json: hidden_size is -12: give a whole number from 1"},
		{`{` + llama + `,"hidden_size":12.5}`, "cost: config.json: hidden_size is 12.5: give a whole number from 1"},
		{`{` + llama + `,"hidden_size":"12"}`, `cost: config.json: hidden_size is "12": give a whole number from 1`},
		{`{` + llama + `,"hidden_size":1e99}`, "cost: config.json: hidden_size is 1e99: give a whole number from 1"},
		{`{` + llama + `,"hidden_size":1048577}`, "cost: config.json: hidden_size is 1048577: set it to at most 1048576"},
		{`{` + llama + `,"num_key_value_heads":0}`, "cost: config.json: num_key_value_heads is 0: give a whole number from 1"},
		{`{` + llama + `,"num_key_value_heads":3}`,
			"cost: config.json: num_key_value_heads is 3, which does not divide the 4 heads: choose a divisor"},
		{`{` + llama + `,"num_attention_heads":5}`,
			"cost: config.json: num_attention_heads is 5, which does not divide the width 12: choose a divisor, or set the width of a head"},
		{`{` + llama + `,"tie_word_embeddings":1}`, "cost: config.json: tie_word_embeddings is 1: give true or false"},
		{`{` + llama + `,"hidden_act":"mish"}`, `cost: config.json: hidden_act is "mish": known are gelu, silu and relu`},
		{`{` + gpt2 + `,"vocab_size":1}`, "cost: config.json: vocab_size is 1: set it to at least 2"},
		{`{` + gpt2 + `,"add_cross_attention":true}`, "cost: config.json: add_cross_attention is true: only false is known"},
		{`{` + opt + `,"do_layer_norm_before":false}`, "cost: config.json: do_layer_norm_before is false: only true is known"},
		{`{` + opt + `,"max_position_embeddings":268435456}`, "cost: config.json: max_position_embeddings is 268435458: set it to at most 268435456"},
		{`{` + opt + `,"max_position_embeddings":9223372036854775807}`,
			"cost: config.json: max_position_embeddings is 9223372036854775807: set it to at most 268435456"},
		{`{` + opt + `,"word_embed_proj_dim":8}`,
			"cost: config.json: word_embed_proj_dim is 8 and hidden_size 12: a table of another width is not known"},
		{`{"model_type":"mistral"` + strings.TrimPrefix(llama, `"model_type":"llama"`) + `}`,
			"cost: config.json: num_key_value_heads is missing: give a whole number"},
		{`{"model_type":"gemma"` + strings.TrimPrefix(llama, `"model_type":"llama"`) + `,"num_key_value_heads":1}`, "cost: config.json: head_dim is missing: give a whole number"},
		{strings.Repeat(" ", maxConfig) + "{}", "cost: config.json has more than 1048576 bytes: give the file beside the model's weights"},
	} {
		m, err := ReadConfig(strings.NewReader(c.text))
		if message(err) != c.want {
			t.Errorf("%.200s: error\n%q, want\n%q", c.text, message(err), c.want)
		}
		if err == nil != (m != Model{}) {
			t.Errorf("%.200s: error %v and model %+v", c.text, err, m)
		}
	}
	_, err := ReadConfig(iotest.ErrReader(errors.New("disk on fire")))
	check(t, err, "cost: config.json: disk on fire")
}

// Options that add biases or leave them out.
func TestReadConfigBiases(t *testing.T) {
	for _, c := range []struct {
		text string
		want Model
	}{
		{`"model_type":"llama","attention_bias":true,"mlp_bias":true`, Model{QKVBias: true, OutBias: true, MLPBias: true}},
		{`"model_type":"mistral","attention_bias":true,"mlp_bias":true`, Model{}}, // which Mistral does not have
		{`"model_type":"gemma","head_dim":3,"attention_bias":true,"mlp_bias":true`, Model{QKVBias: true, OutBias: true}},
		{`"model_type":"qwen2"`, Model{QKVBias: true}},
		{`"model_type":"phi3"`, Model{}},
		{`"model_type":"gpt_neox","attention_bias":false`, Model{MLPBias: true, NormBias: true}},
		{`"model_type":"opt","ffn_dim":16,"enable_bias":false`, Model{NormBias: true}},
	} {
		m, err := ReadConfig(strings.NewReader(`{` + c.text + `,"num_hidden_layers":2,"hidden_size":12,"num_attention_heads":4,` +
			`"num_key_value_heads":2,"intermediate_size":16,"vocab_size":32,"max_position_embeddings":8}`))
		if got := (Model{QKVBias: m.QKVBias, OutBias: m.OutBias, MLPBias: m.MLPBias, NormBias: m.NormBias}); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
	}
}

// Whatever the bytes, ReadConfig returns a valid model or an error.
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
