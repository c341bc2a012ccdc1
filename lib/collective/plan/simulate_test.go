package plan_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

func add(a, b int) int { return a + b }

// TestSimulate compares every plan with what the operation means, on random integers
// of lengths that the ranks do not divide.
func TestSimulate(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	every(t, func(t *testing.T, op plan.Op, algorithm plan.Algorithm) {
		for ranks := 1; ranks <= 10; ranks++ {
			for _, n := range []int{0, 1, 7, 17, 60} {
				root := 0
				if rooted(op) {
					root = random.IntN(ranks)
				}
				p := make1(t, op, algorithm, ranks, plan.Root(root))
				data := make([][]int, ranks)
				for r := range data {
					for range n {
						data[r] = append(data[r], random.IntN(1000))
					}
				}
				got, err := plan.Simulate(p, data, add)
				if err != nil {
					t.Fatal(err)
				}
				for r := range ranks {
					begin, end := plan.Cut(n, ranks, r)
					checkResult(t, p, data, r, got[r], begin, end)
				}
			}
		}
	})
}

// checkResult checks what rank r, whose part goes from begin to end, has got.
func checkResult(t *testing.T, p *plan.Plan, data [][]int, r int, got []int, begin, end int) {
	t.Helper()
	n := len(data[0])
	sum := make([]int, n)
	joined := make([]int, n) // part q of rank q
	for q := range p.Ranks {
		for i, v := range data[q] {
			sum[i] += v
		}
		b, e := plan.Cut(n, p.Ranks, q)
		copy(joined[b:e], data[q][b:e])
	}
	var want []int
	switch p.Op {
	case plan.Broadcast:
		want = data[p.Root]
	case plan.Reduce:
		want = data[r]
		if r == p.Root {
			want = sum
		}
	case plan.AllReduce:
		want = sum
	case plan.AllGather:
		want = joined
	case plan.Gather:
		if r != p.Root {
			return
		}
		want = joined
	case plan.Scatter:
		want, got = data[p.Root][begin:end], got[begin:end]
	case plan.ReduceScatter:
		want, got = sum[begin:end], got[begin:end]
	case plan.AllToAll:
		for q := range p.Ranks {
			want = append(want, data[q][begin:end]...)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%d ranks, %d elements, root %d: rank %d has %v, want %v", p.Ranks, n, p.Root, r, got, want)
	}
}

func TestSimulateErrors(t *testing.T) {
	p := make1(t, plan.AllReduce, plan.Ring, 2)
	for want, call := range map[string]func() error{
		"data of 1 ranks":  func() error { _, err := plan.Simulate(p, [][]int{{1}}, add); return err },
		"rank 1 has 1 ele": func() error { _, err := plan.Simulate(p, [][]int{{1, 2}, {1}}, add); return err },
		"needs a reduct":   func() error { _, err := plan.Simulate(p, [][]int{{1}, {1}}, nil); return err },
		"steps of 0 ranks": func() error {
			_, err := plan.Simulate(&plan.Plan{Ranks: 1, Chunks: 1}, [][]int{{1}}, add)
			return err
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestCut(t *testing.T) {
	for n := range 40 {
		for chunks := 1; chunks < 12; chunks++ {
			at := 0
			for i := range chunks {
				begin, end := plan.Cut(n, chunks, i)
				if size := end - begin; begin != at || size < n/chunks || size > (n+chunks-1)/chunks {
					t.Fatalf("Cut(%d, %d, %d) is %d to %d after %d", n, chunks, i, begin, end, at)
				}
				at = end
			}
			if at != n {
				t.Fatalf("%d elements in %d chunks end at %d", n, chunks, at)
			}
		}
	}
}
