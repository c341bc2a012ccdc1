package cost

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// presetsJSON lists published models by source. Besides the fields of a Model they have the published counts that tests
// compare: params is exact, non_embedding is params without embeddings, printed is rounded, and computed is our count
// where it differs from printed. active is the rounded number of parameters that a token passes through, and
// active_computed ours where it differs; with no_embedding they do not count the token embedding.
//
//go:embed presets.json
var presetsJSON []byte

type preset struct {
	Model
	Params       int64  `json:"params"`
	NonEmbedding int64  `json:"non_embedding"`
	Printed      string `json:"printed"`
	Computed     string `json:"computed"`
	Active       string `json:"active"`
	// ActiveComputed is our count where it differs from Active.
	ActiveComputed string `json:"active_computed"`
	NoEmbedding    bool   `json:"no_embedding"` // Active does not count the token embedding
	Note           string `json:"note"`
}

func readPresets() ([]preset, error) {
	var groups []struct {
		Source string
		Shared Model
		Models []json.RawMessage
	}
	if err := json.Unmarshal(presetsJSON, &groups); err != nil {
		return nil, fmt.Errorf("cost: presets.json: %w", err)
	}
	var all []preset
	for _, g := range groups {
		for _, text := range g.Models {
			p := preset{Model: g.Shared}
			if err := json.Unmarshal(text, &p); err != nil {
				return nil, fmt.Errorf("cost: presets.json: %.60s: %w", text, err)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// Presets returns published models, each family in order of size: GPT-2, GPT-3, Megatron, OPT, Pythia, Llama 2 and 3,
// TinyLlama, Mistral, Qwen2, 2.5 and 3, Phi and Gemma, and with experts Mixtral, DeepSeek-V2 and V3, Qwen3, OLMoE and
// gpt-oss.
func Presets() []Model {
	all, err := readPresets()
	if err != nil {
		panic(err) // the file is part of the package, and a test reads it
	}
	models := make([]Model, len(all))
	for i, p := range all {
		models[i] = p.Model
	}
	return models
}

// Preset returns the published model with a name, such as "Llama 3 8B". It ignores case and treats spaces, hyphens and
// underscores alike. The error for an unknown name lists the nearest ones.
func Preset(name string) (Model, error) {
	return find("model", name, Presets(), func(m Model) string { return m.Name })
}
