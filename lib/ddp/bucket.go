package ddp

import (
	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
)

// DefaultBucketBytes is the default size of buckets, PyTorch's 25 MB.
const DefaultBucketBytes = 25_000_000

// Bucket is a set of gradients that are communicated as one contiguous buffer. The gradients are views into the buffer:
// backward passes write them there and updates read them there, without a copy.
type Bucket struct {
	Params  params.Tree // the parameters, in the order of the buffer and the type of its elements
	Places  []int       // their indices in the model's list of parameters
	Offsets []int       // where each one's gradient begins, in elements
	Size    int         // in elements
}

// Bytes returns the size of the bucket's buffer.
func (b Bucket) Bytes() int64 { return b.Params.Bytes() }

// Buckets returns the buckets, of at most the given bytes each, in which [IntoBuckets] puts the gradients of a list of
// parameters, the last parameters first. Gradients are summed in the floating-point type sum.
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

// BucketsOf returns the buckets for members, the indices of parameters that [IntoBuckets] returns.
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

// sizes returns the bytes of each parameter.
func sizes(tree params.Tree) (bytes []int64) {
	for _, s := range tree {
		bytes = append(bytes, s.Bytes())
	}
	return bytes
}
