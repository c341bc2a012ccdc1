package cost

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// read reads a table of published numbers.
func read[T any](t testing.TB, name string) (rows []T) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no rows", name)
	}
	return rows
}

// check fails the test unless the error has this text; "" means no error.
func check(t testing.TB, err error, want string) {
	t.Helper()
	if got := message(err); got != want {
		t.Errorf("error\n%q, want\n%q", got, want)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func flip(random *rand.Rand) bool { return random.IntN(2) == 0 }

// randomModel returns a small model of any architecture.
func randomModel(random *rand.Rand) Model {
	kv := 1 + random.IntN(3)
	heads := kv * (1 + random.IntN(3))
	m := Model{Layers: 1 + random.IntN(4), Width: heads * (1 + random.IntN(5)), Heads: heads,
		Vocab: 2 + random.IntN(20), Context: 1 + random.IntN(9), Gated: flip(random), Tied: flip(random),
		QKVBias: flip(random), OutBias: flip(random), MLPBias: flip(random), NormBias: flip(random)}
	if flip(random) {
		m.KVHeads = kv
	}
	if flip(random) {
		m.HeadWidth = 1 + random.IntN(6)
	}
	if flip(random) {
		m.Hidden = 1 + random.IntN(30)
	}
	if flip(random) {
		m.PositionRows = m.Context
	}
	m.Sinks, m.QKNorm = flip(random), []string{"", "head", "all"}[random.IntN(3)]
	if flip(random) {
		m.KVHeads, m.HeadWidth, m.QKVBias, m.QKNorm = 0, 2+random.IntN(6), false, ""
		m.KVRank, m.QueryRank, m.RopeWidth = 1+random.IntN(6), random.IntN(6), random.IntN(m.HeadWidth)
		m.ValueWidth = random.IntN(6)
	}
	if flip(random) {
		m.Experts, m.SharedExperts, m.ExpertHidden = 1+random.IntN(6), random.IntN(3), random.IntN(30)
		m.ExpertsPerToken, m.DenseLayers = 1+random.IntN(m.Experts), random.IntN(m.Layers)
		m.RouterBias, m.NoExpertBias = flip(random), m.MLPBias && flip(random)
	}
	return m
}
