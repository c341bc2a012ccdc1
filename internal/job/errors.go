package job

import "strings"

// names maps the Go names of fields in library errors to flags. A name that is a prefix of another one comes after it.
var names = strings.NewReplacer("Config.Layers", "--layers", "Config.Width", "--d", "Config.Heads", "--heads",
	"Config.Seq", "--seq", "Config.KVHeads", "--kv-heads", "Config.Hidden", "--hidden", "Config.Activation",
	"--activation", "Config.Norm", "--norm", "Config.Positions", "--positions", "Config.Dropout", "--dropout",
	"Config.Flash", "--flash", "Config.Matmul", "--precision", "Config.Recompute", "--recompute", "Config.CompressReLU",
	"--compress-relu", "Config.Compress", "--compress", "Recipe.Clip", "--clip", "Recipe.Precision", "--precision",
	"Options.Sync", "--sync", "Options.Every", "--every", "Options.Servers", "--servers", "Options.Stage", "--zero",
	"Options.BucketBytes", "--bucket-bytes", "Options.Accumulate", "--accumulate", "Layout.Replicas", "--replicas",
	"Layout.Data", "--data", "Layout.ZeRO", "--zero", "Layout.Prefetch", "--prefetch", "Layout.Schedule", "--schedule",
	"Layout.Shards", "--shards", "Layout.Partition", "--tensor-partition", "Layout.Recompute", "--recompute-stages",
	"Layout.Sync", "--sync", "Layout.BucketBytes", "--bucket-bytes", "Layout.Ulysses", "--seq-ulysses",
	"Layout.Microbatches", "--accumulate", "Layout.Hook and Every", "--compress-gradients and --every", "Layout.Hook",
	"--compress-gradients", "Layout.Every", "--every", "Layout.TensorSequence", "--tensor-sequence", "Layout.Tensor",
	"--tensor", "the sequence method", "--seq-method", "sequence: Placement", "sequence: --placement",
	"without Ring: choose a mesh axis for Ring", "without a ring: choose --seq-method ring", "updates on the host need",
	"--offload-optimizer: updates on the host need", "Sync and BucketBytes", "--sync and --bucket-bytes",
	"BucketBytes ", "--bucket-bytes ", "(Every)", "(--every)", " and Sync ", " and --sync ", " and ZeRO ",
	" and --zero ", "and Replicas is 1", "and there is one", "or ZeRO", "or --zero", "set Sync to", "choose --sync",
	"or use Replicas", "or have several: --replicas, or --data where each rank has a device", "parallel: ", "",
	"pipeline: ", "--pipe, --cut: ", "or a model with more blocks", "or more --layers", "untie it", "leave out --tied",
	"and loss scaling need", "and --loss-scale need")

// InFlags replaces the names of fields in a library's error by those of flags. It returns nil for nil.
func InFlags(err error) error {
	if err == nil {
		return nil
	}
	return flagError{err, names.Replace(err.Error())}
}

// flagError is an error with another text.
type flagError struct {
	error
	words string
}

func (e flagError) Error() string { return e.words }

func (e flagError) Unwrap() error { return e.error }
