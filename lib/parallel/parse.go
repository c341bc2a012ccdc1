package parallel

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Methods of sequence (context) parallelism.
const (
	seqRing      = "ring"      // keys and values are sent around a ring
	seqUlysses   = "ulysses"   // all-to-alls exchange heads for tokens
	seqAllGather = "allgather" // keys and values are gathered; a layout has it as a ring
	seqHybrid    = "hybrid"    // rings of groups within which heads are exchanged
)

// SeqMethods lists the methods of sequence (context) parallelism: see [SequenceDegrees].
func SeqMethods() []string { return []string{seqRing, seqUlysses, seqAllGather, seqHybrid} }

// SequenceDegrees splits the sequence-parallel devices into Layout.Ring and Layout.Ulysses, for one of [SeqMethods]; ""
// is ring. Only hybrid has both: ulysses is the size of the groups, by default the largest number below devices that
// divides both devices and keyHeads, a device's key/value heads. It is an error if the method or the numbers do not fit
// each other. It does not check that groups divide the heads; the model does.
func SequenceDegrees(devices int, method string, ulysses, keyHeads int) (ring, group int, err error) {
	devices, method = cmp.Or(devices, 1), cmp.Or(method, seqRing)
	switch {
	case devices < 0:
		return 0, 0, fmt.Errorf("parallel: %d devices share sequences: want at least 1", devices)
	case !slices.Contains(SeqMethods(), method):
		return 0, 0, fmt.Errorf("parallel: the sequence method is %.40q: want one of %s", method,
			strings.Join(SeqMethods(), ", "))
	case method != seqHybrid && ulysses != 0:
		return 0, 0, fmt.Errorf("parallel: Layout.Ulysses is %d with the sequence method %s: leave it out, or choose "+
			"%s", ulysses, method, seqHybrid)
	case method == seqUlysses:
		return 1, devices, nil
	case method != seqHybrid:
		return devices, 1, nil
	case ulysses == 0:
		for ulysses = devices / 2; ulysses > 1 && (devices%ulysses != 0 || keyHeads%ulysses != 0); {
			ulysses--
		}
		if ulysses < 2 {
			return 0, 0, fmt.Errorf("parallel: no number of devices below %d divides both these and a device's %d "+
				"key/value heads: choose other numbers, or the sequence method %s", devices, keyHeads, seqRing)
		}
	case ulysses < 2 || ulysses >= devices || devices%ulysses != 0:
		return 0, 0, fmt.Errorf("parallel: Layout.Ulysses is %d of %d devices that share sequences: choose a divisor "+
			"between 1 and %[2]d", ulysses, devices)
	}
	return devices / ulysses, ulysses, nil
}

// String returns the layout as shardbook train --layout takes it, such as pipe=2,data=2,tensor=2,zero=1. It leaves out
// defaults, Plan and Hook.
func (l Layout) String() string {
	for _, n := range []*int{&l.Replicas, &l.Pipe, &l.Data, &l.Tensor, &l.Expert, &l.Every, &l.Hosts} {
		if *n == 1 {
			*n = 0
		}
	}
	var devices, ulysses int
	var method string
	switch l.Ring, l.Ulysses = max(1, l.Ring), max(1, l.Ulysses); {
	case l.Ring > 1 && l.Ulysses > 1:
		devices, ulysses, method = l.Ring*l.Ulysses, l.Ulysses, seqHybrid
	case l.Ulysses > 1:
		devices, method = l.Ulysses, seqUlysses
	case l.Ring > 1:
		devices = l.Ring
	}
	var pairs []string
	for _, k := range []struct {
		key   string
		value any
	}{
		{"replicas", l.Replicas}, {"pipe", l.Pipe}, {"data", l.Data}, {"tensor", l.Tensor},
		{"expert-parallel", l.Expert},
		{"tensor-sequence", l.TensorSequence}, {"tensor-partition", l.Partition}, {"seq-parallel", devices},
		{"seq-method", method}, {"seq-ulysses", ulysses}, {"seq-ranks", l.RingRanks}, {"zero", l.ZeRO},
		{"prefetch", l.Prefetch}, {"shards", l.Shards}, {"schedule", l.Schedule}, {"chunks", l.Chunks},
		{"microbatches", l.Microbatches}, {"cut", strings.Trim(strings.ReplaceAll(fmt.Sprint(l.Cut), " ", ":"), "[]")},
		{"recompute-stages", l.Recompute}, {"offload-optimizer", l.Offload.Update},
		{"offload-activations", l.Offload.Activations}, {"sync", l.Sync}, {"bucket-bytes", l.BucketBytes},
		{"every", l.Every}, {"each-microbatch", l.EachMicroBatch}, {"sum-loss", l.SumLoss}, {"hosts", l.Hosts},
	} {
		switch {
		case k.value == true:
			pairs = append(pairs, k.key)
		case !reflect.ValueOf(k.value).IsZero():
			pairs = append(pairs, fmt.Sprint(k.key, "=", k.value))
		}
	}
	return strings.Join(pairs, ",")
}
