package expert

import (
	"math"
	"math/rand/v2"
	"slices"
)

// reference computes a layer in plain Go, token by token: a second implementation.
type reference struct {
	Config
	width  int
	gated  bool
	length int // of a sequence
}

// values are the parameters, by name.
type values map[string][]float64

// decision is what the router decides for one token.
type decision struct {
	chosen []int  // the best one first
	kept   []bool // whether the expert has room
}

func (r reference) random(random *rand.Rand) values {
	p := values{}
	for _, s := range r.Params("moe", r.width, r.gated) {
		all := make([]float64, s.Size())
		for i := range all {
			all[i] = random.NormFloat64() * 0.5
		}
		p[s.Name] = all
	}
	for i := range p["moe.router.bias"] {
		p["moe.router.bias"][i] *= 0.4
	}
	for _, name := range r.Buffers("moe") {
		if name != "moe.router.bias" {
			for i := range p[name] {
				p[name][i] = 1 + float64(random.IntN(3)-1)/4
			}
		}
	}
	return p
}

func (r reference) logits(p values, x []float64) []float64 {
	out := make([]float64, r.Experts)
	for c, v := range x {
		for e := range out {
			out[e] += v * p["moe.router.w"][c*r.Experts+e]
		}
	}
	return out
}

// scores returns each expert's score.
func (r reference) scores(logits []float64) []float64 {
	out, sum := make([]float64, len(logits)), 0.0
	for e, l := range logits {
		if r.Router == Sigmoid {
			out[e] = 1 / (1 + math.Exp(-l))
			continue
		}
		out[e] = math.Exp(l)
		sum += out[e]
	}
	for e := range out {
		if r.Router != Sigmoid {
			out[e] /= sum
		}
	}
	return out
}

// bias returns the Sigmoid router's new bias.
func (r reference) bias(p values) []float64 {
	out := slices.Clone(p["moe.router.bias"])
	for e := range out {
		switch load := p["moe.router.load"][e]; {
		case load < 1:
			out[e] += r.BiasRate
		case load > 1:
			out[e] -= r.BiasRate
		}
	}
	return out
}

// top returns the indices of the n largest numbers, of equal ones the first.
func top(x []float64, n int) []int {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0
	})
	return order[:n]
}

// decide returns the decisions for all tokens x.
func (r reference) decide(p values, x []float64) []decision {
	all := make([]decision, len(x)/r.width)
	for t := range all {
		choice := r.scores(r.logits(p, x[t*r.width:][:r.width]))
		for e := range r.bias(p) {
			choice[e] += r.bias(p)[e]
		}
		if r.Groups > 0 {
			each := r.Experts / r.Groups
			score := make([]float64, r.Groups)
			for g := range score {
				for _, i := range top(choice[g*each:][:each], min(2, each)) {
					score[g] += choice[g*each+i]
				}
			}
			in := top(score, r.GroupsPerToken)
			for e := range choice {
				if !slices.Contains(in, e/each) {
					choice[e] = math.Inf(-1)
				}
			}
		}
		all[t] = decision{top(choice, r.PerToken), slices.Repeat([]bool{true}, r.PerToken)}
	}
	if r.Capacity > 0 {
		most := math.Ceil(r.Capacity * float64(r.PerToken*r.length) / float64(r.Experts))
		for first := 0; first < len(all); first += r.length {
			has := make([]float64, r.Experts)
			for j := range r.PerToken {
				for _, d := range all[first : first+r.length] {
					d.kept[j] = has[d.chosen[j]] < most
					has[d.chosen[j]]++
				}
			}
		}
	}
	return all
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// mlp is expert e of a token.
func (r reference) mlp(p values, e int, x []float64) []float64 {
	h := make([]float64, r.Hidden)
	for i := range h {
		up, gate := 0.0, 0.0
		for c, v := range x {
			at := (e*r.width+c)*r.Hidden + i
			up += v * p["moe.experts.up.w"][at]
			if r.gated {
				gate += v * p["moe.experts.gate.w"][at]
			}
		}
		if h[i] = silu(up); r.gated {
			h[i] = up * silu(gate)
		}
	}
	y := make([]float64, r.width)
	for c := range y {
		for i, v := range h {
			y[c] += v * p["moe.experts.down.w"][(e*r.Hidden+i)*r.width+c]
		}
	}
	return y
}

// apply returns the results and the terms, given the decisions.
func (r reference) apply(p values, all []decision, x []float64) (y, term []float64) {
	counts := make([][]float64, len(all)/r.length)
	for t, d := range all {
		if t%r.length == 0 {
			counts[t/r.length] = make([]float64, r.Experts)
		}
		for _, e := range d.chosen {
			counts[t/r.length][e]++
		}
	}
	for t, d := range all {
		x := x[t*r.width:][:r.width]
		logits := r.logits(p, x)
		scores := r.scores(logits)
		weights, sum := make([]float64, r.PerToken), 0.0
		for j, e := range d.chosen {
			weights[j] = scores[e]
			sum += scores[e]
		}
		out := make([]float64, r.width)
		for j, e := range d.chosen {
			if r.Normalize {
				weights[j] /= sum
			}
			if r.Scale != 0 {
				weights[j] *= r.Scale
			}
			if d.kept[j] {
				for c, v := range r.mlp(p, e, x) {
					out[c] += weights[j] * v
				}
			}
		}
		y = append(y, out...)
		all, exponentials, balance := 0.0, 0.0, 0.0
		for e := range scores {
			all += scores[e]
			exponentials += math.Exp(logits[e])
		}
		for e, n := range counts[t/r.length] {
			balance += n * float64(r.Experts) / float64(r.PerToken*r.length) * scores[e] / all
		}
		term = append(term, r.Balance*balance+r.ZLoss*math.Pow(math.Log(exponentials), 2))
	}
	return y, term
}

// loss is what tests differentiate: a weighted sum of the results, and the mean term.
func (r reference) loss(p values, all []decision, x []float64) float64 {
	y, term := r.apply(p, all, x)
	sum := 0.0
	for i, v := range y {
		sum += v * math.Cos(float64(i))
	}
	for _, v := range term {
		sum += v / float64(len(term))
	}
	return sum
}

// gradient is the loss's gradient by numbers that it depends on, by central differences.
func (r reference) gradient(p values, all []decision, x, by []float64) []float64 {
	const step = 1e-5
	out := make([]float64, len(by))
	for i, v := range by {
		by[i] = v + step
		above := r.loss(p, all, x)
		by[i] = v - step
		out[i] = (above - r.loss(p, all, x)) / (2 * step)
		by[i] = v
	}
	return out
}

// changes returns what the gradients of buffers must be: old values less new ones.
func (r reference) changes(p values, all []decision) values {
	load, kept := make([]float64, r.Experts), make([]float64, r.Experts)
	each := float64(r.Experts) / float64(r.PerToken*len(all))
	for _, d := range all {
		for j, e := range d.chosen {
			load[e] += each
			if d.kept[j] {
				kept[e] += each
			}
		}
	}
	out := values{}
	for name, now := range (values{"moe.router.load": load, "moe.router.kept": kept, "moe.router.bias": r.bias(p)}) {
		for e, old := range p[name] {
			out[name] = append(out[name], old-now[e])
		}
	}
	return out
}
