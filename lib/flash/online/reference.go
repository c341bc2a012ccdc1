package online

import "math"

// Reference is one head of attention as its definition says it, in float64, to compare everything else with: q is T×d,
// k is S×d and v is S×e, row after row, and query i sees key j where visible(i, j); a nil visible is always true. It
// returns
//
//	out = softmax(scale·q·kᵀ)·v,    T×e
//	lse = log Σ exp(scale·q·kᵀ),    T
//
// with sums over what a query sees. A query that sees nothing has output 0 and lse −Inf. If the sizes do not fit, both
// are nil.
func Reference(q, k, v []float64, d, e int, scale float64, visible func(i, j int) bool) (out, lse []float64) {
	p, lse := referenceWeights(q, k, v, d, e, scale, visible)
	if lse == nil {
		return nil, nil
	}
	out = make([]float64, len(p)*e)
	for i := range p {
		for j := range p[i] {
			for c := range e {
				out[i*e+c] += p[i][j] * v[j*e+c]
			}
		}
	}
	return out, lse
}

// ReferenceGradients returns the gradients of Σ dout·out with respect to q, k and v, for the out of [Reference] and a
// dout of its size. What no query sees has gradient 0, and so has a query that sees nothing. If the sizes do not fit,
// all are nil.
func ReferenceGradients(q, k, v, dout []float64, d, e int, scale float64,
	visible func(i, j int) bool) (dq, dk, dv []float64) {
	p, lse := referenceWeights(q, k, v, d, e, scale, visible)
	if lse == nil || len(dout) != len(p)*e {
		return nil, nil, nil
	}
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	for i := range p {
		dp := make([]float64, len(p[i]))
		for j := range dp {
			for c := range e {
				dv[j*e+c] += p[i][j] * dout[i*e+c]
				dp[j] += dout[i*e+c] * v[j*e+c]
			}
		}
		for j := range dp {
			var ds float64 // by the whole Jacobian of softmax, ∂pₗ/∂sⱼ = pₗ·([l=j] − pⱼ)
			for l := range dp {
				if l == j {
					ds += dp[l] * p[i][l]
				}
				ds -= dp[l] * p[i][l] * p[i][j]
			}
			for c := range d {
				dq[i*d+c] += scale * ds * k[j*d+c]
				dk[j*d+c] += scale * ds * q[i*d+c]
			}
		}
	}
	return dq, dk, dv
}

// referenceWeights returns the softmax of the scores, a row for each query, and their log-sum-exp; nil if the sizes do
// not fit.
func referenceWeights(q, k, v []float64, d, e int, scale float64,
	visible func(i, j int) bool) (p [][]float64, lse []float64) {
	if d < 1 || e < 1 || len(q)%d != 0 || len(k)%d != 0 || len(v)%e != 0 || len(k)/d != len(v)/e {
		return nil, nil
	}
	p, lse = make([][]float64, len(q)/d), make([]float64, len(q)/d)
	for i := range p {
		p[i] = make([]float64, len(k)/d)
		highest := math.Inf(-1)
		for j := range p[i] {
			p[i][j] = math.Inf(-1)
			if visible == nil || visible(i, j) {
				p[i][j] = 0
				for c := range d {
					p[i][j] += q[i*d+c] * k[j*d+c]
				}
				p[i][j] *= scale
			}
			highest = max(highest, p[i][j])
		}
		lse[i] = highest
		if math.IsInf(highest, -1) {
			clear(p[i])
			continue
		}
		var sum float64
		for j := range p[i] {
			p[i][j] = math.Exp(p[i][j] - highest)
			sum += p[i][j]
		}
		for j := range p[i] {
			p[i][j] /= sum
		}
		lse[i] += math.Log(sum)
	}
	return p, lse
}
