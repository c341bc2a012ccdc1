package cost

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// presetsJSON has published models, a group for each source: what its models share, and the models. Beside the fields of
// a Model stand the published counts that the tests compare: params is exact, non_embedding is params less both tables,
// printed is rounded, and computed what comes out where that differs from what is printed.
//
//go:embed presets.json
var presetsJSON []byte

type preset struct {
	Model
	Params       int64  `json:"params"`
	NonEmbedding int64  `json:"non_embedding"`
	Printed      string `json:"printed"`
	Computed     string `json:"computed"`
	Note         string `json:"note"`
}

// readPresets returns the published models in the order of the file.
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

// Presets returns the published models that are known, the sizes of each in order: GPT-2, GPT-3, Megatron, OPT, Pythia,
// Llama 2 and 3, TinyLlama, Mistral, Qwen2 and 2.5, Phi and Gemma.
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

// Preset returns the published model of that name, such as "Llama 3 8B". Case does not count, and spaces, hyphens and
// underscores are one. The error for an unknown name lists the nearest.
func Preset(name string) (Model, error) {
	return find("model", name, Presets(), func(m Model) string { return m.Name })
}
