package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

func must[T any](v T, err error) T { if err != nil { panic(err) }; return v }

func main() {
	steps := 10
	if len(os.Args) > 1 { steps, _ = strconv.Atoi(os.Args[1]) }
	opts := []xla.Option{xla.Devices(1), xla.Plugin("cpu")}
	if len(os.Args) > 2 { opts = append(opts, xla.KeepMemory()) }
	b := must(xla.Open(opts...))
	mesh := must(b.Mesh(xla.Axis("data", 1)))
	c := gpt.ReferenceConfig()
	rule := optim.AdamW(3e-4)
	tree := c.Params()
	st := optim.States(rule, tree)
	n, k := len(tree), len(st)
	var don []int
	for i := range n + k { don = append(don, i) }
	prog := must(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		w, s, step, x, y := in[:n], in[n:n+k], in[n+k], in[n+k+1], in[n+k+2]
		loss := c.Loss(tree.Nodes(w), x, y)
		w, s = optim.Apply(rule, tree, w, graph.Gradient(loss, w...), s, step)
		return slices.Concat(w, s, []*graph.Node{loss})
	}, xla.In(xla.Replicated()).Gives(xla.Replicated()).Donates(don...)))
	var state []any
	for _, v := range slices.Concat(must(c.Init()), must(params.Zeros(st))) { state = append(state, must(mesh.Place(v, xla.Replicated()))) }
	bat := must(gpt.Reference().Batches(c, 16))
	var times []time.Duration
	for s := range steps {
		x, y, _ := bat.Step(s)
		args := slices.Concat(state, []any{tensors.FromScalar(int32(s + 1)), x, y})
		t := time.Now()
		out := must(prog.Call(args...))
		d := time.Since(t)
		for i := range n + k { state[i] = out[i] }
		fmt.Printf("%d %.5f %v\n", s, tensors.ToScalar[float32](must(out[n+k].Shards()[0].LocalClone())), d)
		if s > 1 { times = append(times, d) }
	}
	slices.Sort(times)
	m := must(prog.Memory())
	fmt.Println("median", times[len(times)/2], "min", times[0], "temp", m.Temporary, "args", m.Arguments, "alias", m.Aliased)
}
