package gpt_test

import (
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// call runs a graph function once in plain Go.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	return devicetest.CallOn(devicetest.PureGo(), fn, args...)
}

// randomConfig returns a small model of any architecture.
func randomConfig(random *rand.Rand) gpt.Config {
	kv := 1 + random.IntN(3)
	heads := kv * (1 + random.IntN(3))
	c := gpt.Config{Layers: 1 + random.IntN(3), Width: heads * 2 * (1 + random.IntN(3)), Heads: heads,
		Seq: 1 + random.IntN(9), Vocab: 2 + random.IntN(20), KVHeads: kv, Hidden: random.IntN(20),
		Gated: random.IntN(2) == 0, Tied: random.IntN(2) == 0, NoBias: random.IntN(2) == 0}
	if random.IntN(2) == 0 {
		c.Norm = gpt.RMSNorm
	}
	if random.IntN(2) == 0 {
		c.Positions = gpt.Rotary
	}
	return c
}

// randomModel returns parameters without special values (no scale is 1 and no bias 0, which would hide mistakes), as
// tensors and as the plain model.
func randomModel(c gpt.Config, random *rand.Rand) ([]*tensors.Tensor, plainModel) {
	m := plainModel{c, make(map[string][]float64)}
	var ts []*tensors.Tensor
	for _, s := range c.Params() {
		f32, f64 := make([]float32, s.Size()), make([]float64, s.Size())
		for i := range f32 {
			f32[i] = float32(random.NormFloat64() / 2)
			f64[i] = float64(f32[i])
		}
		ts, m.p[s.Name] = append(ts, tensors.FromFlatDataAndDimensions(f32, s.Shape.Dimensions...)), f64
	}
	return ts, m
}

// randomTokens returns a batch of random sequences.
func randomTokens(random *rand.Rand, batch, seq, vocab int) [][]int32 {
	rows := make([][]int32, batch)
	for b := range rows {
		rows[b] = make([]int32, seq)
		for t := range rows[b] {
			rows[b][t] = random.Int32N(int32(vocab))
		}
	}
	return rows
}

// plainModel is a second implementation of the model to compare with: float64, one number at a time, without shapes or
// libraries, sharing only the parameters' names with the package.
type plainModel struct {
	gpt.Config
	p map[string][]float64
}

// loss returns the mean cross-entropy of the sequences.
func (m plainModel) loss(inputs, targets [][]int32) float64 {
	sum, n := 0.0, 0
	for b := range inputs {
		for t, logits := range m.logits(inputs[b]) {
			total := 0.0
			for _, l := range logits {
				total += math.Exp(l)
			}
			sum -= math.Log(math.Exp(logits[targets[b][t]]) / total)
			n++
		}
	}
	return sum / float64(n)
}

// logits returns the logits at each position of one sequence.
func (m plainModel) logits(tokens []int32) [][]float64 {
	d, dh, kv := m.Width, m.Width/m.Heads, m.Heads
	if m.KVHeads > 0 {
		kv = m.KVHeads
	}
	hidden := 4 * d
	if m.Hidden > 0 {
		hidden = m.Hidden
	}
	x := make([][]float64, len(tokens)) // position, feature
	for t, token := range tokens {
		x[t] = make([]float64, d)
		for c := range d {
			x[t][c] = m.p["tok"][int(token)*d+c]
			if m.Positions != gpt.Rotary {
				x[t][c] += m.p["pos"][t*d+c]
			}
		}
	}
	for layer := range m.Layers {
		at := fmt.Sprintf("h%d.", layer)
		qkv := make([][]float64, len(x))
		for t := range x {
			qkv[t] = m.linear(at+"qkv", m.norm(at+"ln1", x[t]), d+2*kv*dh)
			if m.Positions == gpt.Rotary {
				for h := range m.Heads + kv {
					rotate(qkv[t][h*dh:(h+1)*dh], t)
				}
			}
		}
		for t := range x {
			heads := make([]float64, d)
			for h := range m.Heads {
				weight, total := make([]float64, t+1), 0.0
				for s := range t + 1 {
					dot := 0.0
					for c := range dh {
						dot += qkv[t][h*dh+c] * qkv[s][d+h*kv/m.Heads*dh+c]
					}
					weight[s] = math.Exp(dot / math.Sqrt(float64(dh)))
					total += weight[s]
				}
				for s := range t + 1 {
					for c := range dh {
						heads[h*dh+c] += weight[s] / total * qkv[s][d+kv*dh+h*kv/m.Heads*dh+c]
					}
				}
			}
			for c, y := range m.linear(at+"o", heads, d) {
				x[t][c] += y
			}
		}
		for t := range x {
			in := m.norm(at+"ln2", x[t])
			h := m.linear(at+"up", in, hidden)
			var gate []float64
			if m.Gated {
				gate = m.linear(at+"gate", in, hidden)
			}
			for c, u := range h {
				if m.Gated {
					h[c] = u * gate[c] / (1 + math.Exp(-gate[c]))
				} else {
					h[c] = u / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(u+0.044715*math.Pow(u, 3))))
				}
			}
			for c, y := range m.linear(at+"down", h, d) {
				x[t][c] += y
			}
		}
	}
	out := make([][]float64, len(x))
	for t := range x {
		last := m.norm("lnf", x[t])
		if !m.Tied {
			out[t] = m.linear("head", last, m.Vocab)
			continue
		}
		out[t] = make([]float64, m.Vocab)
		for v := range m.Vocab {
			for c := range d {
				out[t][v] += last[c] * m.p["tok"][v*d+c]
			}
		}
	}
	return out
}

// linear returns x·w + b; a missing bias is 0.
func (m plainModel) linear(name string, x []float64, out int) []float64 {
	y := make([]float64, out)
	copy(y, m.p[name+".b"])
	w := m.p[name+".w"]
	for i := range x {
		for j := range y {
			y[j] += x[i] * w[i*out+j]
		}
	}
	return y
}

func (m plainModel) norm(name string, x []float64) []float64 {
	mean, variance := 0.0, 0.0
	for _, v := range x {
		if m.Norm != gpt.RMSNorm {
			mean += v / float64(len(x))
		}
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	y, scale, shift := make([]float64, len(x)), m.p[name+".g"], m.p[name+".b"]
	for c, v := range x {
		y[c] = (v - mean) / math.Sqrt(variance+1e-5) * scale[c]
		if m.Norm != gpt.RMSNorm {
			y[c] += shift[c]
		}
	}
	return y
}

// rotate rotates the feature pairs of one head as complex numbers.
func rotate(head []float64, position int) {
	half := len(head) / 2
	for i := range half {
		angle := float64(position) / math.Pow(10000, float64(i)/float64(half))
		turned := complex(head[i], head[half+i]) * cmplx.Rect(1, angle)
		head[i], head[half+i] = real(turned), imag(turned)
	}
}

// gradient returns the central differences (f(w+h) − f(w−h)) / 2h of the loss for every element. In float64 with
// h = 1e-5 their error is about 1e-10.
func (m plainModel) gradient(tree params.Tree, inputs, targets [][]int32) map[string][]float64 {
	const h = 1e-5
	grads := make(map[string][]float64)
	for _, s := range tree {
		w := m.p[s.Name]
		g := make([]float64, len(w))
		for i, at := range w {
			w[i] = at + h
			up := m.loss(inputs, targets)
			w[i] = at - h
			g[i] = (up - m.loss(inputs, targets)) / (2 * h)
			w[i] = at
		}
		grads[s.Name] = g
	}
	return grads
}

// refused checks an error's text, or that there is no error for "".
func refused(t *testing.T, what any, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%+v: error %v, want %q", what, err, want)
	}
}
