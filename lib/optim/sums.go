package optim

import "github.com/shardbook/shardbook/lib/params"

// Sums reports whether an optimizer sums over all elements of a parameter, as [LAMB] and [Adafactor] do: the ranks that
// have its parts then need an all-reduce. Optimizers of other packages are assumed not to.
func Sums(r Optimizer, param params.Spec) bool {
	switch r := r.(type) {
	case LAMBOptimizer, AdafactorOptimizer:
		return true
	case grouped:
		return Sums(r.of(param), param)
	case scheduled:
		return Sums(r.optimizer, param)
	}
	return false
}
