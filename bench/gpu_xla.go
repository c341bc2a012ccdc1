package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// serveTraining trains with this project.
func (b *gpuBench) serveTraining(ctx context.Context) (subject, func(), error) {
	backend, err := b.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &trainSubject{backend: backend, read: readGPUTraining}, backend.Close, nil
}

func readGPUTraining(params []byte) (t trial, err error) {
	var c gpuTraining
	if err := json.Unmarshal(params, &c); err != nil {
		return t, err
	}
	policy, err := precision.ParsePolicy(c.Precision)
	recipe := train.Recipe{Model: c.Config, Optimizer: optim.AdamW(trainRate), Precision: policy}
	return trial{start: startOne, recipe: recipe, batch: c.step}, err
}

// serveAttention attends with this project.
func (b *gpuBench) serveAttention(ctx context.Context) (subject, func(), error) {
	backend, err := b.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	mesh, err := backend.Mesh(xla.Axis("device", 1))
	s := &gpuFlash{compiled: compiled{mesh: mesh}, backend: backend, arrays: map[[2]int][]float32{}}
	return s, backend.Close, err
}

// gpuFlash is attention and its gradients as one program.
type gpuFlash struct {
	compiled
	backend *xla.Backend
	arrays  map[[2]int][]float32 // operands by number and size: those of most cases are the same
}

// attentionProgram gives the output and the gradients of queries, keys and values, from these and the gradient of the
// output.
func attentionProgram(mesh *xla.Mesh) (*xla.Program, error) {
	return xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		out := flash.Attention(in[0], in[1], in[2], flash.Causal())
		return append([]*graph.Node{out}, graph.Gradient(graph.ReduceAllSum(graph.Mul(out, in[3])), in[:3]...)...)
	}, xla.In(xla.Replicated()).Gives(xla.Replicated()))
}

func (s *gpuFlash) prepare(params []byte) (f facts, err error) {
	var c gpuAttention
	if err := json.Unmarshal(params, &c); err != nil {
		return f, err
	}
	policy, err := precision.ParsePolicy(c.Precision)
	if err != nil {
		return f, err
	}
	if err := s.fill(c, policy.Compute); err != nil {
		return f, err
	}
	if s.program, err = attentionProgram(s.mesh); err != nil {
		return f, err
	}
	begin := time.Now()
	out, err := s.call()
	if err != nil {
		return f, err
	}
	f.FirstMS = milliseconds(begin, 1)
	defer free(out)
	plan, err := s.program.Memory()
	if err != nil {
		return f, err
	}
	f.Memory = footprint{Arguments: plan.Arguments, Outputs: plan.Outputs, Temporary: plan.Temporary,
		DevicePeak: devicePeak(s.backend)}
	for _, result := range out {
		flat, err := inFloat32(result)
		if err != nil {
			return f, err
		}
		f.Values = append(f.Values, gpuFingerprint(flat))
	}
	return f, nil
}

// fill puts queries, keys, values and the output's gradient on the device. 3 is the number of fingerprints.
func (s *gpuFlash) fill(c gpuAttention, of dtypes.DType) error {
	var operands []*tensors.Tensor
	for _, number := range []int{0, 1, 2, 4} {
		heads := c.Heads
		if number == 1 || number == 2 {
			heads = c.KVHeads
		}
		key := [2]int{number, c.Batch * c.Tokens * heads * c.Width}
		if s.arrays[key] == nil {
			s.arrays[key] = flashData(key[0], key[1])
		}
		dims := []int{c.Batch, c.Tokens, heads, c.Width}
		if of == dtypes.BFloat16 {
			half := bfloat16.FromFloat32s(s.arrays[key]...)
			operands = append(operands, tensors.FromFlatDataAndDimensions(half, dims...))
		} else {
			operands = append(operands, tensors.FromFlatDataAndDimensions(s.arrays[key], dims...))
		}
	}
	return s.put(xla.Replicated(), operands...)
}

// inFloat32 copies the elements of a result.
func inFloat32(result *dtensor.Tensor) ([]float32, error) {
	shard := result.Shards()[0]
	if shard.DType() == dtypes.Float32 {
		return tensors.CopyFlatData[float32](shard)
	}
	half, err := tensors.CopyFlatData[bfloat16.BFloat16](shard)
	flat := make([]float32, len(half))
	for i, x := range half {
		flat[i] = x.Float32()
	}
	return flat, err
}

// devicePeak is the most memory that programs and arrays had on the device, where XLA counts it.
func devicePeak(backend *xla.Backend) int64 {
	m, err := backend.DeviceMemory(0)
	if err != nil { // XLA's CPUs do not count
		return 0
	}
	return m.Peak
}

func (s *gpuFlash) finish() error {
	s.close()
	return nil
}
