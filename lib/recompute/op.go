package recompute

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Op is an operation of a Transformer block whose output is saved for the backward pass or recomputed in it.
type Op uint8

// The operations in the order in which a block computes them.
const (
	Norm1  Op = iota // the normalization before attention
	QKV              // queries, keys and values
	Scores           // the attention weights, softmax(q·kᵀ)
	Mix              // the weighted mean of the values
	Mid              // the sum of the block's input and the projected attention output
	Norm2            // the normalization before the MLP
	Up               // the MLP's first matmul, with the gate's
	Act              // its activation
	Down             // the sum of Mid and the MLP's output: the block's output
	ops
)

var opNames = [ops]string{"norm1", "qkv", "scores", "mix", "mid", "norm2", "up", "act", "down"}

// AllOps lists the operations of a block in order.
func AllOps() []Op {
	all := make([]Op, ops)
	for i := range all {
		all[i] = Op(i)
	}
	return all
}

// String returns the name, as in "norm1".
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return opNames[o]
}

// ParseOp returns the operation with a name, or an error that lists the names.
func ParseOp(name string) (Op, error) {
	if i := slices.Index(opNames[:], name); i >= 0 {
		return Op(i), nil
	}
	return 0, fmt.Errorf("recompute: no operation %q: choose from %s", name, strings.Join(opNames[:], ", "))
}

// Set is a set of operations of one block.
type Set uint16

// allOps is the set of all operations.
const allOps Set = 1<<ops - 1

// SetOf returns the set of some operations.
func SetOf(list ...Op) Set {
	var s Set
	for _, o := range list {
		s |= 1 << o
	}
	return s
}

// Has reports whether an operation is in the set.
func (s Set) Has(o Op) bool { return s>>o&1 == 1 }

// Len returns the number of operations in the set.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// String lists the names, as in "norm1,act"; "-" for none.
func (s Set) String() string {
	var names []string
	for _, o := range AllOps() {
		if s.Has(o) {
			names = append(names, o.String())
		}
	}
	if names == nil {
		return "-"
	}
	return strings.Join(names, ",")
}
