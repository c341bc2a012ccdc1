package schedule

import (
	"strings"
	"testing"
)

func TestPassString(t *testing.T) {
	var words []string
	for _, p := range []Pass{Forward, Backward, InputGrad, WeightGrad, Update, 'x'} {
		words = append(words, p.String())
	}
	const want = `forward, backward, input gradient, weight gradient, update, pass 'x'`
	if got := strings.Join(words, ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestHolders(t *testing.T) {
	s := Schedule{Stages: 2, Microbatches: 1, Every: 1, Weights: Flush, Ranks: [][]Action{
		{{Forward, 0, 0}, {Forward, 5, 0}, {Forward, -1, 0}}, {{Forward, 1, 0}, {Forward, 0, 0}}}}
	holders := s.Holders()
	if len(holders) != 2 || len(holders[0]) != 2 || len(holders[1]) != 1 || holders[1][0] != 1 {
		t.Errorf("%v, want [[0 1] [1]]", holders)
	}
	s.Stages = 1 << 62
	if holders := s.Holders(); holders != nil {
		t.Errorf("%v of impossible sizes", holders)
	}
}
