package ddp

import (
	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
)

// DefaultBucketBytes is the size that buckets have unless told otherwise, PyTorch's 25 MB.
const DefaultBucketBytes = 25_000_000

// Bucket is a part of a model's gradients that is communicated as one contiguous buffer. The gradients in it are views
// into the buffer: a backward pass writes them there, and an update reads them from there, without a copy.
type Bucket struct {
	Params  params.Tree // whose gradients they are, in the type that they are summed in, in the order in which they lie
	Places  []int       // of these in the model's list of parameters
	Offsets []int       // where each begins, in elements
	Size    int         // elements of all of them
}

// Bytes is the size of the bucket's buffer.
func (b Bucket) Bytes() int64 { return b.Params.Bytes() }

// Buckets are those in which [IntoBuckets] puts the gradients of a list of parameters, summed in a floating-point type:
// of at most so many bytes each, those of the last parameters first.
func Buckets(tree params.Tree, sum dtypes.DType, bytes int64) (buckets []Bucket) {
	tree = tree.As(sum)
	all := make([]int, len(tree))
	for i := range all {
		all[i] = i
	}
	one := &step.Plan{Blocks: []step.Block{{Units: []int{0}}}, Units: make([]step.Unit, 1),
		Ranks: [][]step.Op{{{Kind: step.Forward}}}}
	_, members := IntoBuckets(one, [][]int{all}, sizes(tree), bytes)
	return BucketsOf(members, tree)
}

// BucketsOf are buckets of members, the places of parameters that [IntoBuckets] returns, in a list of these.
func BucketsOf(members [][]int, tree params.Tree) (buckets []Bucket) {
	for _, places := range members {
		b := Bucket{Places: places}
		for _, at := range places {
			b.Params, b.Offsets = append(b.Params, tree[at]), append(b.Offsets, b.Size)
			b.Size += tree[at].Size()
		}
		buckets = append(buckets, b)
	}
	return buckets
}

// sizes are the bytes of each parameter.
func sizes(tree params.Tree) (bytes []int64) {
	for _, s := range tree {
		bytes = append(bytes, s.Bytes())
	}
	return bytes
}
