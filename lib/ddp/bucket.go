package ddp

import (
	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
)

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

// DefaultBucketBytes is the size that buckets have unless told otherwise, PyTorch's 25 MB.
const DefaultBucketBytes = 25_000_000

// Buckets puts the gradients of a model's parameters, summed in a floating-point type, into buckets of at most so many
// bytes each; one that is larger has a bucket of its own. The first bucket has the last parameters, since the backward
// pass comes to these first (Li et al. 2020, §3.2.3). Parameters that are not used are in none; nil means that all are.
func Buckets(tree params.Tree, used []bool, sum dtypes.DType, bytes int64) []Bucket {
	tree = tree.As(sum)
	var all []Bucket
	for place := len(tree) - 1; place >= 0; place-- {
		spec := tree[place]
		if used != nil && !used[place] {
			continue
		}
		if n := len(all); n == 0 || all[n-1].Bytes()+spec.Bytes() > bytes {
			all = append(all, Bucket{})
		}
		b := &all[len(all)-1]
		b.Params, b.Places, b.Offsets = append(b.Params, spec), append(b.Places, place), append(b.Offsets, b.Size)
		b.Size += spec.Size()
	}
	return all
}

// slot is where a gradient lies.
type slot struct{ bucket, offset int }

// slots returns where the gradient of each of a number of parameters lies; bucket −1 is nowhere.
func slots(buckets []Bucket, parameters int) []slot {
	at := make([]slot, parameters)
	for i := range at {
		at[i].bucket = -1
	}
	for b, bucket := range buckets {
		for k, place := range bucket.Places {
			at[place] = slot{b, bucket.Offsets[k]}
		}
	}
	return at
}
