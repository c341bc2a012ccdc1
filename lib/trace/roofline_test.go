package trace_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
	"gonum.org/v1/gonum/floats/scalar"
)

// A machine of 4 TFLOP/s and 100 GB/s, on which an operation needs 40 FLOP a byte to be bound by compute.
func ExampleRoof() {
	roof := trace.Roof{FLOPS: 4e12, Bandwidth: 100e9}
	matmul := trace.Operation{Name: "matmul", Work: trace.Work{FLOPs: 2e9, Bytes: 12e6}, Time: time.Millisecond}
	add := trace.Operation{Name: "add", Work: trace.Work{FLOPs: 1e6, Bytes: 12e6}, Time: 150 * time.Microsecond}
	fmt.Println(roof.Ridge())
	fmt.Print(roof.Table("operations", matmul, add).Text())
	fmt.Print(roof.Chart("roofline", matmul, add).Text())
	// Output:
	// 40
	// operations
	// name        ms  FLOP/byte  GFLOP/s   GB/s  bound by  % of roof
	// matmul   1.000      166.7     2000  12.00  compute        50.0
	// add     0.1500    0.08333    6.667  80.00  memory         80.0
	// roofline
	//         intensity (FLOP/byte)     FLOP/s       roof
	// matmul                  166.7      2e+12      4e+12  bound by compute
	// add                   0.08333  6.667e+09  8.333e+09  bound by memory
}

// The two views of the model agree: by times, and by rates under the roof.
func TestRoof(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	for range 1000 {
		roof := trace.Roof{FLOPS: 1e9 * (1 + 1e3*random.Float64()), Bandwidth: 1e9 * (1 + 100*random.Float64())}
		o := trace.Operation{
			Work: trace.Work{FLOPs: 1 + random.Int64N(1e12), Bytes: 1 + random.Int64N(1e10)},
			Time: time.Duration(1 + random.Int64N(int64(time.Second))),
		}
		attainable := min(roof.FLOPS, roof.Bandwidth*float64(o.FLOPs)/float64(o.Bytes))
		if got, want := roof.Share(o), o.Rate()/attainable; !scalar.EqualWithinRel(got, want, 1e-12) {
			t.Fatalf("%+v under %+v: share %v, want %v", o, roof, got, want)
		}
	}
}

// A copy has a share of the bandwidth though it computes nothing, and a place in the table but not under the roof.
func TestRoofOfCopies(t *testing.T) {
	roof := trace.Roof{FLOPS: 1e12, Bandwidth: 1e10}
	o := trace.Operation{Name: "copy", Work: trace.Work{Bytes: 1e7}, Time: 2 * time.Millisecond}
	if text := roof.Table("t", o).Text(); !strings.Contains(text, "memory") || roof.Share(o) != 0.5 {
		t.Errorf("a copy has the share %v, in the table\n%s", roof.Share(o), text)
	}
	if err := roof.Chart("t", o).Err(); err == nil {
		t.Error("no error of a roofline of a copy alone")
	}
	if err := roof.Table("t", o, trace.Operation{}).Err(); err != nil {
		t.Error(err)
	}
}

// Only what was counted becomes an operation, with the work and the time of all calls.
func TestOperations(t *testing.T) {
	ops := step().Table().Operations()
	want := []trace.Operation{
		{Name: "backward", Work: trace.Work{FLOPs: 32e9, Bytes: 16e7}, Time: 9 * time.Millisecond},
		{Name: "gradients", Work: trace.Work{Bytes: 4e6}, Time: 8 * time.Millisecond},
		{Name: "forward", Work: trace.Work{FLOPs: 16e9, Bytes: 8e7}, Time: 5 * time.Millisecond},
	}
	if fmt.Sprint(ops) != fmt.Sprint(want) {
		t.Errorf("operations %v, want %v", ops, want)
	}
}
