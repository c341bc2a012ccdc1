package optim_test

import (
	"math"

	"github.com/shardbook/shardbook/lib/optim"
)

// plain is one step of an optimizer for one parameter, in float64 and written from its paper, as a reference. It
// changes w and the states, which start at zero.
type plain func(dims []int, w, g []float64, states [][]float64, step int)

// each makes a plain optimizer of a step of one element.
func each(f func(w, g float64, s []float64, step int) float64) plain {
	return func(_ []int, w, g []float64, states [][]float64, step int) {
		for i := range w {
			s := make([]float64, len(states))
			for k := range states {
				s[k] = states[k][i]
			}
			w[i] = f(w[i], g[i], s, step)
			for k := range states {
				states[k][i] = s[k]
			}
		}
	}
}

func plainSGD(r optim.SGDOptimizer) plain {
	return each(func(w, g float64, s []float64, _ int) float64 {
		b := g
		if r.Momentum != 0 {
			s[0] = r.Momentum*s[0] + g
			b = s[0]
			if r.Nesterov {
				b = g + r.Momentum*s[0]
			}
		}
		return w - r.LR*b - r.LR*r.WeightDecay*w
	})
}

func plainAdamW(r optim.AdamWOptimizer) plain {
	return each(func(w, g float64, s []float64, step int) float64 {
		return w - r.LR*(plainAdamDirection(r, g, s, step)+r.WeightDecay*w)
	})
}

func plainAdamDirection(r optim.AdamWOptimizer, g float64, s []float64, step int) float64 {
	t := float64(step)
	s[0] = r.Beta1*s[0] + (1-r.Beta1)*g
	s[1] = r.Beta2*s[1] + (1-r.Beta2)*g*g
	return s[0] / (1 - math.Pow(r.Beta1, t)) / (math.Sqrt(s[1]/(1-math.Pow(r.Beta2, t))) + r.Eps)
}

// plainLAMB is algorithm 2 of You et al. 2020.
func plainLAMB(r optim.LAMBOptimizer) plain {
	return func(_ []int, w, g []float64, states [][]float64, step int) {
		u := make([]float64, len(w))
		var sizeOfW, sizeOfU float64
		for i := range w {
			s := []float64{states[0][i], states[1][i]}
			u[i] = plainAdamDirection(optim.AdamWOptimizer(r), g[i], s, step) + r.WeightDecay*w[i]
			states[0][i], states[1][i] = s[0], s[1]
			sizeOfW += w[i] * w[i]
			sizeOfU += u[i] * u[i]
		}
		trust := 1.0
		if sizeOfW > 0 && sizeOfU > 0 {
			trust = math.Sqrt(sizeOfW) / math.Sqrt(sizeOfU)
		}
		for i := range w {
			w[i] -= r.LR * trust * u[i]
		}
	}
}

// plainLion is algorithm 2 of Chen et al. 2023.
func plainLion(r optim.LionOptimizer) plain {
	return each(func(w, g float64, s []float64, _ int) float64 {
		c := r.Beta1*s[0] + (1-r.Beta1)*g
		s[0] = r.Beta2*s[0] + (1-r.Beta2)*g
		sign := 0.0
		if c > 0 {
			sign = 1
		} else if c < 0 {
			sign = -1
		}
		return w - r.LR*(sign+r.WeightDecay*w)
	})
}

// plainAdafactor is algorithms 4 and 5 of Shazeer & Stern 2018, with means instead of sums.
func plainAdafactor(r optim.AdafactorOptimizer) plain {
	rms := func(x []float64) float64 {
		sum := 0.0
		for _, x := range x {
			sum += x * x
		}
		return math.Sqrt(sum / float64(len(x)))
	}
	return func(dims []int, w, g []float64, states [][]float64, step int) {
		t := float64(step)
		beta := 1 - math.Pow(t, -r.Decay)
		v := make([]float64, len(w)) // V̂
		if len(dims) < 2 {
			for i := range w {
				states[0][i] = beta*states[0][i] + (1-beta)*(g[i]*g[i]+r.Eps1)
				v[i] = states[0][i]
			}
		} else {
			n, m := dims[len(dims)-2], dims[len(dims)-1]
			for at := 0; at < len(w); at += n * m { // for each matrix
				matrix := at / (n * m)
				rows, columns := states[0][matrix*n:][:n], states[1][matrix*m:][:m]
				sums, all := make([]float64, n+m), 0.0
				for i := range n {
					for j := range m {
						square := g[at+i*m+j]*g[at+i*m+j] + r.Eps1
						sums[i] += square
						sums[n+j] += square
					}
				}
				for i := range n {
					rows[i] = beta*rows[i] + (1-beta)*sums[i]/float64(m)
					all += rows[i] * float64(m)
				}
				for j := range m {
					columns[j] = beta*columns[j] + (1-beta)*sums[n+j]/float64(n)
				}
				for i := range n {
					for j := range m {
						v[at+i*m+j] = rows[i] * float64(m) * columns[j] * float64(n) / all
					}
				}
			}
		}
		u := make([]float64, len(w))
		for i := range w {
			u[i] = g[i] / math.Sqrt(v[i])
		}
		rho := r.LR
		if rho == 0 {
			rho = math.Min(1e-2, 1/math.Sqrt(t))
		}
		if !r.Absolute {
			rho *= math.Max(r.Eps2, rms(w))
		}
		rho /= math.Max(1, rms(u)/r.Clip)
		for i := range w {
			change := rho * u[i]
			if r.Beta1 != 0 {
				m := states[len(states)-1]
				m[i] = r.Beta1*m[i] + (1-r.Beta1)*change
				change = m[i]
			}
			w[i] -= change
		}
	}
}
