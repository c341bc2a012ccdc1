package xla

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/pjrt"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// upstreamMesh arranges n devices by GoMLX.
func upstreamMesh(t *testing.T, n int) *distributed.DeviceMesh {
	t.Helper()
	return must.Get(distributed.NewDeviceMesh([]int{n}, []string{"data"}))(t)
}

// callSPMD runs a graph function on both devices of go-xla's backend or ours, and returns the results of each.
func callSPMD(t *testing.T, b compute.Backend, fn func(w, x *graph.Node) *graph.Node, args ...any) []string {
	t.Helper()
	exec := must.Get(graph.NewExec(b, fn))(t)
	defer exec.Finalize()
	out := must.Get(exec.SPMD(upstreamMesh(t, 2)).Call(args...))(t)
	texts := make([]string, len(out))
	for i, o := range out {
		texts[i] = fmt.Sprint(o.Value())
	}
	return texts
}

func TestUpstreamAllReduceUnderCheckpoint(t *testing.T) {
	b := openUpstream(t)
	gradient := func(allReduce func(x *graph.Node) *graph.Node) func(w, x *graph.Node) *graph.Node {
		return func(w, x *graph.Node) *graph.Node {
			return graph.Gradient(graph.Mul(w, allReduce(x.Checkpoint())), w)[0] // of w·sum, which is the sum
		}
	}
	theirs := gradient(func(x *graph.Node) *graph.Node {
		return x.Graph().Distributed().AllReduceOne(x, compute.ReduceOpSum)
	})
	args := []any{float32(1), float32(1), float32(1), float32(10)} // w and x on each device
	switch got := fmt.Sprint(callSPMD(t, b.Backend, theirs, args...)); got {
	case "[1 10]":
	case "[11 11]":
		mended(t, "all-reduce under Checkpoint", "lib/xla/collective.go (the further operand in Apply)")
	default:
		t.Errorf("gradients %s: neither the bug's nor right", got)
	}
	mine := gradient(func(x *graph.Node) *graph.Node {
		return Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}.Apply(x)[0]
	})
	if got := fmt.Sprint(callSPMD(t, b, mine, args...)); got != "[11 11]" {
		t.Errorf("with the workaround: gradients %s", got)
	}
}

func TestUpstreamDonation(t *testing.T) {
	b := openUpstream(t)
	one := func(x *graph.Node) *graph.Node { return graph.AddScalar(x, 1) }
	exec := must.Get(graph.NewExec(b.Backend, one))(t)
	defer exec.Finalize()
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1000))
	_, g, err := exec.CallWithGraph(must.Get(graph.DonateTensorBuffer(x, b.Backend, 0))(t))
	must.Do(t, err)
	if loadedExecutable(g.Executable()).OnDeviceMemoryUsageStats.Aliases != 0 {
		mended(t, "donation", "lib/xla/donate.go (donate)")
	}
	mesh := must.Get(b.Mesh(Axis("data", 1)))(t)
	program := must.Get(Compile(mesh, one, In(Replicated()).Gives(Replicated()).Donates(0)))(t)
	defer program.Close()
	must.Get(program.Call(make([]float32, 1000)))(t)
	if m, err := program.Memory(); err != nil || m.Aliased != 4000 {
		t.Errorf("with the workaround: %+v, %v", m, err)
	}
}

func TestUpstreamMeshOfOneDevice(t *testing.T) {
	exec := must.Get(graph.NewExec(openUpstream(t).Backend, func(x *graph.Node) *graph.Node { return graph.Neg(x) }))(t)
	defer exec.Finalize()
	_, err := exec.SPMD(upstreamMesh(t, 1)).Call(float32(1))
	refused(t, err, "no device assignment", "a mesh of one device", "lib/xla/mesh.go (devices)")
}

func TestUpstreamUnevenOutput(t *testing.T) {
	mesh := upstreamMesh(t, 2)
	spec := must.Get(distributed.NewShardingSpec(mesh, distributed.AxisSpec{"data"}))(t)
	exec := must.Get(graph.NewExec(openUpstream(t).Backend, func(g *graph.Graph) *graph.Node {
		return graph.Iota(g, shapes.Make(dtypes.Int32, 3), 0)
	}))(t)
	defer exec.Finalize()
	out, err := exec.AutoSharding(mesh).WithOutputShardingSpecs(spec).Call()
	if err != nil || len(out) != 2 || fmt.Sprint(out[0].Value()) != "[0 1 2]" ||
		fmt.Sprint(out[1].Value()) != "[0 1 2]" {
		t.Logf("3 elements split over 2 devices: %v, %v", out, err)
		mended(t, "an output that does not divide", "lib/xla/program.go (assemble)")
	}
}

func TestUpstreamShardShape(t *testing.T) {
	spec := must.Get(distributed.NewShardingSpec(upstreamMesh(t, 2), distributed.AxisSpec{"data"}))(t)
	if got := spec.ShardShape(shapes.Make(dtypes.Float32, 4, 3)); fmt.Sprint(got.Dimensions) != "[4 3]" {
		t.Logf("axis 0 of [4 3] split over 2 devices: %v", got)
		mended(t, "shard shapes of short specs", "lib/xla/mesh.go (shardShape)")
	}
}

// TestUpstreamAllReduceOfSeveralTypes writes an all-reduce until its parts have another order: Go's maps are random.
// With the workaround the order is the same.
func TestUpstreamAllReduceOfSeveralTypes(t *testing.T) {
	types := []dtypes.DType{dtypes.Float32, dtypes.Float64, dtypes.Int64, dtypes.Float32, dtypes.Int32}
	order := func(b compute.Backend, reduction compute.ReduceOpType) (order string) {
		builder := b.Builder("types")
		must.Do(t, builder.DistributedSPMD(2))
		main := builder.Main()
		var operands []compute.Value
		for i, dtype := range types {
			operands = append(operands, must.Get(main.Parameter(fmt.Sprint("x", i), shapes.Make(dtype), nil))(t))
		}
		must.Get(main.AllReduce(operands, reduction, [][]int{{0, 1}}))(t)
		if ours, ok := main.(*function); ok {
			main = ours.Function
		}
		for _, statement := range hloFunction(main).Statements {
			order += fmt.Sprint(len(statement.Outputs), " ", statement.Outputs[0].Shape().DType, "; ")
		}
		return order
	}
	b := openUpstream(t)
	theirs := map[string]bool{}
	for range 200 {
		theirs[order(b.Backend, compute.ReduceOpSum)] = true
	}
	if len(theirs) == 1 {
		mended(t, "all-reduce of several types", "lib/xla/collective.go (AllReduce)")
	}
	sum := Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"order"}}.reduction()
	for range 50 {
		// The last operand comes back as it is.
		if got, want := order(b, sum), "2 Float32; 1 Float64; 1 Int64; "; got != want {
			t.Fatalf("operations %q, want %q", got, want)
		}
	}
}

// TestUpstreamAllReduceHasNoGradient reads GoMLX's source, since lib/collective may have registered a gradient.
func TestUpstreamAllReduceHasNoGradient(t *testing.T) {
	source := must.Get(os.ReadFile(filepath.Join(folderOf(t, graph.Gradient), "rev_autodiff.go")))(t)
	if strings.Contains(string(source), "NodeTypeAllReduce:") {
		mended(t, "all-reduce without a gradient", "lib/collective/gradient.go")
	}
}

// folderOf returns the folder of a function's source. It skips the test if that is not available.
func folderOf(t *testing.T, function any) string {
	t.Helper()
	file, _ := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).FileLine(0)
	if _, err := os.Stat(file); err != nil {
		systest.Skip(t, systest.System, fmt.Errorf("upstream's source is not here: %w", err))
	}
	return filepath.Dir(file)
}

// TestUpstreamAllReduceLosesSubnormals adds the smallest float32 and 0.
func TestUpstreamAllReduceLosesSubnormals(t *testing.T) {
	const smallest = float32(math.SmallestNonzeroFloat32)
	got := callSPMD(t, openUpstream(t).Backend, func(_, x *graph.Node) *graph.Node {
		return graph.Bitcast(x.Graph().Distributed().AllReduceOne(x, compute.ReduceOpSum), dtypes.Uint32)
	}, float32(0), smallest, float32(0), float32(0))
	if fmt.Sprint(got) != "[0 0]" {
		t.Logf("bits of the sum: %v", got)
		mended(t, "all-reduce of subnormals", "lib/xla/collective.go (Bits)")
	}
}

// TestUpstreamHalfTypesTravelWide sums bfloat16 numbers, which are sent as float32, like all half types.
func TestUpstreamHalfTypesTravelWide(t *testing.T) {
	mesh := must.Get(openUpstream(t).Mesh(Axis("data", 2)))(t)
	p := must.Get(Compile(mesh, func(x *graph.Node) *graph.Node {
		half := graph.ConvertDType(x, dtypes.BFloat16)
		return Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}.Apply(half)[0]
	}, In(Shard(0, "data")).Gives(Replicated())))(t)
	defer p.Close()
	must.Do(t, p.Prepare(make([]float32, 32)))
	report := must.Get(p.Collectives())(t)
	if got := report.Of(AllReduce); got.Bytes != 16*4 {
		t.Logf("16 numbers have %d bytes", got.Bytes)
		mended(t, "half types between devices", "lib/xla/collective.go (moves)")
	}
}

// TestUpstreamHasNoBroadcastOnCPU compiles an operation that XLA has only for GPUs.
func TestUpstreamHasNoBroadcastOnCPU(t *testing.T) {
	builder := openUpstream(t).Backend.Builder("broadcast")
	must.Do(t, builder.DistributedSPMD(2))
	must.Do(t, builder.DeviceAssignment(0, 1))
	main := builder.Main()
	x := must.Get(main.Parameter("x", shapes.Make(dtypes.Float32, 4), nil))(t)
	y := must.Get(stablehlo.CollectiveBroadcast(hloValue(x), [][]int{{0, 1}}))(t)
	must.Do(t, main.Return([]compute.Value{newValue(x, y)}, nil))
	_, err := builder.Compile()
	refused(t, err, "collective-broadcast", "collective broadcast on CPUs", "lib/collective/move.go (Broadcast)")
}

// TestUpstreamLacks looks for functions that upstream does not have, by the names that they would have.
func TestUpstreamLacks(t *testing.T) {
	for _, test := range []struct {
		beside     any // a function of the package
		lacks      []string
		workaround string
	}{
		{stablehlo.AllReduce, []string{"ReduceScatter"}, "lib/xla/collective.go (writeReduceScatter)"},
		{stablehlo.AllReduce, []string{"ReplicaID", "PartitionID"}, "lib/collective/rank.go"},
		{graph.While, []string{"AllGather", "ReduceScatter", "AllToAll", "CollectivePermute"}, "lib/xla/collective.go"},
		{graph.While, []string{"ShardingConstraint", "WithSharding", "Reshard"}, "lib/xla/auto.go (Constrain)"},
		{stablehlo.AllReduce, []string{"CustomCallV4", "CustomCallTyped"}, "lib/xla/foreign.go (write)"},
		{graph.While, []string{"CustomCall", "ForeignCall"}, "lib/xla/foreign.go (Call)"},
		{pjrt.IsCUDAName, []string{"RegisterHandler", "RegisterFFIHandler"}, "internal/plugin/kernel.go"},
		{pjrt.IsCUDAName, []string{"OptimizedProgram", "GetOptimizedProgram"}, "internal/plugin/program.go"},
	} {
		declared := functionsBeside(t, test.beside)
		for _, name := range test.lacks {
			if declared[strings.ToLower(name)] {
				mended(t, "the lack of "+name, test.workaround)
			}
		}
	}
}

// functionsBeside returns the names of the functions and methods of a function's package, in lower case.
func functionsBeside(t *testing.T, function any) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, file := range must.Get(filepath.Glob(filepath.Join(folderOf(t, function), "*.go")))(t) {
		parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		for _, declared := range parsed.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok {
				names[strings.ToLower(f.Name.Name)] = true
			}
		}
	}
	own := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name()
	if !names[strings.ToLower(own[strings.LastIndex(own, ".")+1:])] {
		t.Fatalf("%s is not in the package of its source", own)
	}
	return names
}
