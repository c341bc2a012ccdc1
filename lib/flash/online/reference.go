package online

import "math"

// Reference computes one head of attention by its definition, in float64, as a reference for tests. q is T×d, k is S×d
// and v is S×e, row-major. Query i sees key j if visible(i, j) is true or visible is nil. It returns
//
//	out = softmax(scale·q·kᵀ)·v,    T×e
//	lse = log Σ exp(scale·q·kᵀ),    T
//
// over the keys that a query sees. A query that sees no key has output 0 and lse −Inf. Both are nil for wrong sizes.
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

// ReferenceGradients returns the gradients of q, k and v for the out of [Reference] and the output gradient dout. Keys
// that no query sees, and queries that see no key, have gradient 0. All are nil for wrong sizes.
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
			var ds float64 // by the full Jacobian of softmax, ∂pₗ/∂sⱼ = pₗ·([l=j] − pⱼ)
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

// referenceWeights returns the softmax of the scores, a row for each query, and their log-sum-exp; nil for wrong sizes.
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
