package plan

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// term is what a slot holds in a symbolic run: one rank's contribution to a chunk, or a sum of two terms. Terms of one
// algebra that add the same numbers in the same order have the same id. Which operand comes first does not count, as it
// makes no difference to a floating-point sum.
type term struct {
	id          int
	chunk       int // of the origin
	rank        int // of the origin, if left is nil
	left, right *term
	ranks       *big.Int // the set of contributing ranks, a bit each
	count       int      // of them
}

type algebra struct {
	ids map[[3]int]int
}

func newAlgebra() *algebra { return &algebra{map[[3]int]int{}} }

func (a *algebra) id(key [3]int) int {
	id, seen := a.ids[key]
	if !seen {
		id = len(a.ids)
		a.ids[key] = id
	}
	return id
}

// leaf is the contribution of a rank to a chunk.
func (a *algebra) leaf(rank, chunk int) *term {
	return &term{id: a.id([3]int{0, rank, chunk}), chunk: chunk, rank: rank, count: 1,
		ranks: new(big.Int).SetBit(new(big.Int), rank, 1)}
}

// add refuses what can never become right again: a contribution that is added twice, and a sum of different chunks.
func (a *algebra) add(x, y *term) (*term, error) {
	if x.chunk != y.chunk {
		return nil, fmt.Errorf("adds %v and %v, of different chunks", x, y)
	}
	if both := new(big.Int).And(x.ranks, y.ranks); both.Sign() != 0 {
		return nil, fmt.Errorf("the contribution of rank %d is in both %v and %v", both.TrailingZeroBits(), x, y)
	}
	id := a.id([3]int{1, min(x.id, y.id), max(x.id, y.id)})
	return &term{id: id, chunk: x.chunk, left: x, right: y, count: x.count + y.count,
		ranks: new(big.Int).Or(x.ranks, y.ranks)}, nil
}

// missing is the first of the ranks that has not contributed, or -1.
func (t *term) missing(ranks int) int {
	for r := range ranks {
		if t.ranks.Bit(r) == 0 {
			return r
		}
	}
	return -1
}

// String is the sum in the order in which it was made, without parentheses: "a0+b0+c0".
func (t *term) String() string {
	if t == nil {
		return "·"
	}
	var b strings.Builder
	t.write(&b, false)
	return b.String()
}

// nested is the same with parentheses round every sum but the outermost.
func (t *term) nested() string {
	var b strings.Builder
	t.write(&b, true)
	return b.String()
}

func (t *term) write(b *strings.Builder, parentheses bool) {
	if t.left == nil {
		b.WriteString(letters(t.rank) + strconv.Itoa(t.chunk))
		return
	}
	for i, part := range []*term{t.left, t.right} {
		if i > 0 {
			b.WriteByte('+')
		}
		if parentheses && part.left != nil {
			b.WriteByte('(')
			part.write(b, true)
			b.WriteByte(')')
		} else {
			part.write(b, parentheses)
		}
	}
}

// letters names a rank as a spreadsheet names a column: a to z, aa, ab, …
func letters(rank int) string {
	if rank < 26 {
		return string(rune('a' + rank))
	}
	return letters(rank/26-1) + string(rune('a'+rank%26))
}
