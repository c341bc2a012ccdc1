package flash_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/flash"
)

// together runs several problems in one program, since compiling takes longer than running.
func together(backend compute.Backend, problems []problem, build func(p problem, in nodes) nodes) ([]result, error) {
	var args []*tensors.Tensor
	for _, p := range problems {
		args = append(args, p.args()...)
	}
	out, err := devicetest.CallOn(backend, func(in nodes) (all nodes) {
		for _, p := range problems {
			n := len(p.args())
			all, in = append(all, build(p, in[:n])...), in[n:]
		}
		return all
	}, args...)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(problems))
	for i := range results {
		results[i] = toResult(out[i*len(result{}) : (i+1)*len(result{})])
	}
	return results, nil
}

// check uses flash-attention's criterion (Dao et al., tests/test_flash_attn.py): the error against float64 is at most
// twice that of the naive computation in the same type, plus a small absolute one: here a rounding of every term of the
// sums.
func (p problem) check(got, naive, exact result) error {
	roundoff := map[dtypes.DType]float64{dtypes.Float32: 0x1p-24, dtypes.BFloat16: 0x1p-9, dtypes.Float16: 0x1p-12}
	is, may, terms := got.errors(exact), naive.errors(exact), p.largestTerms()
	for i := range is {
		unit := roundoff[p.dtype]
		if i == 1 {
			unit = roundoff[dtypes.Float32]
		}
		if limit := 2*may[i] + unit*terms[i]; !(is[i] <= limit) {
			return fmt.Errorf("%v: error of %s %g, of the naive computation %g: want at most %g", p, resultNames[i],
				is[i], may[i], limit)
		}
	}
	return nil
}

// compare checks the problems with changed options, several in one program.
func compare(t *testing.T, problems []problem, each int, change func(o *flash.Options)) {
	t.Helper()
	for len(problems) > 0 {
		some := problems[:min(each, len(problems))]
		problems = problems[len(some):]
		got, err := together(devicetest.One(), some, func(p problem, in nodes) nodes {
			o := p.options(in)
			change(&o)
			return p.attention(in, o)
		})
		if err != nil {
			t.Fatal(err)
		}
		naive, err := together(devicetest.PureGo(), some, problem.naive)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range some {
			if err := p.check(got[i], naive[i], p.exact()); err != nil {
				t.Error(err)
			}
		}
	}
}

func randomProblems(seed uint64, n int) []problem {
	r := rand.New(rand.NewPCG(seed, 2))
	problems := make([]problem, n)
	for i := range problems {
		problems[i] = randomProblem(r)
	}
	return problems
}

func TestAgainstFloat64(t *testing.T) {
	compare(t, systest.OfFull(t, 200, randomProblems(1, 1000)), 50, func(o *flash.Options) {})
}
