package cost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// like formats a count like a published one: with as many digits, and with M or B.
func like(printed string, count int64) string {
	unit := map[byte]float64{'M': 1e6, 'B': 1e9}[printed[len(printed)-1]]
	_, decimals, _ := strings.Cut(printed[:len(printed)-1], ".")
	return fmt.Sprintf("%.*f%c", len(decimals), float64(count)/unit, printed[len(printed)-1])
}

// The count of every preset is the published one, exactly or to the printed digits, or the file says that it differs.
func TestPresetCounts(t *testing.T) {
	presets := must.Get(readPresets())(t)
	exact := 0
	seen := map[string]bool{}
	for _, p := range presets {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if seen[plain(p.Name)] {
			t.Errorf("there are two presets %s", p.Name)
		}
		seen[plain(p.Name)] = true
		count := p.Model.Params()
		if p.Params != 0 {
			exact++
			if count.Total() != p.Params {
				t.Errorf("%s: %d parameters, published are %d", p.Name, count.Total(), p.Params)
			}
		}
		if p.NonEmbedding != 0 && count.nonEmbedding() != p.NonEmbedding {
			t.Errorf("%s: %d without tables, published are %d", p.Name, count.nonEmbedding(), p.NonEmbedding)
		}
		switch {
		case p.Params == 0 && p.Printed == "":
			t.Errorf("%s has no published count", p.Name)
		case p.Computed != "":
			if got := like(p.Computed, count.Total()); got != p.Computed || got == p.Printed {
				t.Errorf("%s: %s, the file says that %s is printed and %s comes out", p.Name, got, p.Printed,
					p.Computed)
			}
		case p.Printed != "":
			if got := like(p.Printed, count.Total()); got != p.Printed {
				t.Errorf("%s: %s, printed is %s", p.Name, got, p.Printed)
			}
		}
		active := count.Active()
		if p.NoEmbedding {
			active -= count.Embeddings
		}
		switch {
		case p.Experts == 0:
			if active != count.Total() || p.Active != "" {
				t.Errorf("%s has no experts: %d active of %d, published are %q", p.Name, active, count.Total(), p.Active)
			}
		case p.ActiveComputed != "":
			if got := like(p.ActiveComputed, active); got != p.ActiveComputed || got == p.Active || p.Note == "" {
				t.Errorf("%s: %s active, the file says that %s is printed and %s comes out", p.Name, got, p.Active,
					p.ActiveComputed)
			}
		default:
			if got := like(p.Active, active); got != p.Active {
				t.Errorf("%s: %s active, published are %s", p.Name, got, p.Active)
			}
		}
	}
	if len(presets) != 82 || exact != 60 {
		t.Errorf("%d presets, %d with an exact count", len(presets), exact)
	}
}

// OpenAI 2025, gpt-oss Model Card, table 1: the parts of both models, in billions. Its MLPs have the routers.
func TestPartsOfGPTOSS(t *testing.T) {
	for name, want := range map[string][3]string{
		"gpt-oss-120b": {"114.71B", "0.96B", "1.16B"}, "gpt-oss-20b": {"19.12B", "0.64B", "1.16B"},
	} {
		p := must.Get(Preset(name))(t).Params()
		for i, n := range []int64{p.MLP, p.Attention, p.Embeddings + p.Head} {
			if got := like(want[i], n); got != want[i] {
				t.Errorf("%s, part %d: %s, want %s", name, i, got, want[i])
			}
		}
	}
}

// Every group of presets and every accelerator has a source and only known fields.
func TestSources(t *testing.T) {
	var groups []struct {
		Source string
		Shared Model
		Models []preset
	}
	var hardware []struct {
		Hardware
		Source string
	}
	strict(t, presetsJSON, &groups)
	strict(t, hardwareJSON, &hardware)
	for _, g := range groups {
		if g.Source == "" || len(g.Models) == 0 {
			t.Errorf("a group of presets has source %q and %d models", g.Source, len(g.Models))
		}
	}
	for _, h := range hardware {
		if h.Source == "" {
			t.Errorf("%s has no source", h.Name)
		}
	}
}

func strict(t *testing.T, text []byte, to any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	must.Do(t, d.Decode(to))
}

func TestPreset(t *testing.T) {
	for _, name := range []string{"Llama 3 8B", "llama-3-8b", " LLAMA_3 8b"} {
		m, err := Preset(name)
		if err != nil || m.Name != "Llama 3 8B" || m.Layers != 32 || m.KV() != 8 {
			t.Errorf("%q: %+v, %v", name, m, err)
		}
	}
	for _, c := range []struct{ name, want string }{
		{"llama-3-9b", `cost: unknown model "llama-3-9b": of 82, the nearest are ` +
			`["Llama 3 8B" "Llama 2 7B" "Llama 3 70B" "Llama 2 13B"]`},
		{"", `cost: unknown model "": of 82, the nearest are ["GPT-2" "GPT-2 medium" "GPT-2 large" "GPT-2 XL"]`},
	} {
		_, err := Preset(c.name)
		check(t, err, c.want)
	}
	if _, err := Preset(strings.Repeat("é", 1<<20)); err == nil || len(err.Error()) > 500 {
		t.Errorf("a name of 2 MiB: an error of %d bytes", len(message(err)))
	}
}
