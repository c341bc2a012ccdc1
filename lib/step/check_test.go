package step

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// parsed reads a plan, and checks that it is the same after it is written and read again.
func parsed(t *testing.T, text string) *Plan {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	if again, err := Parse(p.String()); err != nil || !reflect.DeepEqual(p, again) {
		t.Fatalf("%s\nis written as\n%vand read as\n%v(%v)", text, p, again, err)
	}
	return p
}

// good are plans that can be carried out.
var good = []string{
	"schedule 1f1b stages=2 microbatches=2\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1",
	"schedule dualpipe stages=2\nrank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1 0U3 1U3\nrank 1: 0F2 1F0 0F3 1B0 1F1 " +
		"0B2 1B1 0I3 0W3 0U3 1U3",
	"plan zero-3 blocks=2\naxis data size=4 groups=0-3\nunits 0-1 reduce=data shard=data\n" +
		"ranks 0-3: 0UNSHARD 1UNSHARD 0F0 0RESHARD 1F0 0UNSHARD 1B0 1RESHARD 1REDUCE_GRAD 0B0 0RESHARD 0REDUCE_GRAD U0",
	"plan zero-1 blocks=2\naxis data size=2 groups=0-1\nunits 0-1 reduce=data shard=data\n" +
		"ranks 0-1: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD U0 0UNSHARD 1UNSHARD",
	"plan pipes blocks=2 microbatches=2\naxis data size=2 groups=0,2|1,3\nunits 0-1 reduce=data\n" +
		"ranks 0,2: 0F0 0F1 0B0 0B1 0REDUCE_GRAD U1\nranks 1,3: 1F0 1B0 1F1 1B1 1REDUCE_GRAD U1",
}

func TestGood(t *testing.T) {
	for _, text := range good {
		p := parsed(t, text)
		if err := p.Check(); err != nil {
			t.Errorf("%v%v", p, err)
		}
		q, err := p.WithMessages()
		if err != nil {
			t.Fatal(err)
		}
		parsed(t, q.String())
		if err := q.Check(); err != nil {
			t.Errorf("%v%v", q, err)
		}
	}
}

// TestCheckWaits: the error of a deadlock names the ranks that wait.
func TestCheckWaits(t *testing.T) {
	p := parsed(t, "schedule x stages=2\nrank 0: 0F0 0B0 0F1 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1")
	const want = "rank 0 is at 0B0 and waits for 1SEND_B0 of rank 1; rank 1 is at 1F1 and waits for 0SEND_F1 of rank 0"
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestCheckRandom compares Check with a second checker, on random plans and on random changes of them.
func TestCheckRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	counts := map[Weights]map[bool]int{Flush: {}, Stash: {}, Vertical: {}, Double: {}}
	for range 6000 {
		p := randomPlan(random)
		if err := p.Check(); err != nil || !dumbValid(p) {
			t.Fatalf("%vCheck says %v, the second checker %v", p, err, dumbValid(p))
		}
		if p.Weights == Stash {
			p.Weights = []Weights{Stash, Vertical, Double}[random.IntN(3)]
		}
		before := p.String()
		for range 1 + random.IntN(2) {
			mutate(random, p)
		}
		err, want := p.Check(), dumbValid(p)
		if (err == nil) != want {
			t.Fatalf("%sbecomes\n%vCheck says %v, the second checker %v", before, p, err, want)
		}
		counts[p.Weights][err == nil]++
	}
	for weights, of := range counts {
		if of[true] < 30 || of[false] < 30 {
			t.Errorf("weights %s: %d plans were good and %d bad: the test needs both", weights, of[true], of[false])
		}
	}
}

// TestCheckErrors checks that errors say where, and what is wrong.
func TestCheckErrors(t *testing.T) {
	const (
		head = "schedule x stages=2 microbatches=2\n"
		zero = "plan x blocks=1\naxis data size=2 groups=0-1\nunit 0 reduce=data shard=data\n"
		two  = "plan x blocks=2\naxis data size=2 groups=0-1\nunits 0-1 reduce=data\n"
	)
	for _, c := range []struct{ text, want string }{
		{"schedule x stages=2 microbatches=2", "no ranks"},
		{head + "rank 0: 0F0", "1 operations are too few for 2 blocks and 2 micro-batches"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 2B1 1U1",
			"rank 1, position 3, 2B1: block 2: the model has blocks 0 to 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F2 1B0 1B1 1U1",
			"micro-batch 2: there are micro-batches 0 to 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1B1 1U1",
			"rank 1, position 2, 1B1: the rank has no forward pass of the micro-batch before it"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1U1",
			"block 1 has no forward pass for micro-batch 1: add 1F1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1U1",
			"block 1 has no backward for micro-batch 1: add 1B1 to rank 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1I1 1U1",
			"block 1 has no weight gradient for micro-batch 1: add 1W1"},
		{head + "rank 0: 0F0 0F1 0F0 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1",
			"position 2, 0F0: the rank has done that already"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1I0 1B1 1U1",
			"1I0: the rank has done that already: remove one; use B, or I and W"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1W0 1I0 1B1 1U1",
			"1W0: the rank has no input gradient of the micro-batch before it"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1U1\nrank 2: 1B1 1U1",
			"block 1 has no backward for micro-batch 1: add 1B1 to rank 1"},
		{head + "rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1 0U1 1U1",
			"1B0: the block's gradient for micro-batch 1 came before"},
		{head + "rank 0: 0F0 0F1 0B0 0U1 0B1\nrank 1: 1F0 1F1 1B0 1B1 1U1",
			"0B1: the update of unit 0 that needs its gradient came before"},
		{head + "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "rank 0 has no update 0U1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U0\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0U0: the next update of the unit is 0U1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0U1: unit 0 has had its last update"},
		{head + "rank 0: 0F0 1F1 0F1 1F0 1B0 1B1 0B0 0B1 0U1 1U1",
			"position 1, 1F1: it needs the input of block 1 for micro-batch 1"},
		{"schedule x stages=1 microbatches=3 every=2\nrank 0: 0F0 0F1 0F2",
			"an update every 2 micro-batches: give a divisor of the 3"},
		{"schedule x stages=1 microbatches=2 every=1\nrank 0: 0F0 0B0 0U0 0F1 0B1 0U1",
			`weights "flush" need one every 2; use that, or other weights`},
		{"schedule x stages=1 microbatches=2 every=1 weights=stash\nrank 0: 0F0 0B0 0F1 0B1 0U0 0U1",
			"belongs to a later update than 0U0"},
		{"schedule x stages=1 microbatches=3 every=1 weights=double\nrank 0: 0F0 0F1 0F2 0B0 0U0 0B1 0U1 0B2 0U2",
			"rank 0, position 2, 0F2: it needs version 1 of the weights, and the rank has only version 0 by then"},
		{head + "rank 0: 0F0 0B0 0F1 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "deadlock"},
		{zero + "ranks 0-1: 0UNSHARD 0F0 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD 0U0",
			"position 2, 0UNSHARD: the rank has gathered them already"},
		{zero + "ranks 0-1: 0UNSHARD 0F0 0RESHARD 0B0 0REDUCE_GRAD 0U0",
			"rank 0, position 3, 0B0: it needs the gathered parameters of unit 0, which the rank does not have"},
		{zero + "ranks 0-1: 0UNSHARD 0F0 0B0 0REDUCE_GRAD 0RESHARD 0RESHARD 0U0",
			"position 5, 0RESHARD: it needs the gathered parameters"},
		{zero + "ranks 0-1: 0UNSHARD 0F0 0B0 0REDUCE_GRAD 0U0",
			"position 0, 0UNSHARD: the rank has gathered them already: free them at the end"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0U0",
			"ends with gathered parameters of unit 0 from before its update: gather them after"},
		{zero + "ranks 0-1: 0F0 0B0 0U0 0UNSHARD", "position 2, 0U0: gradients are not reduced along all of [data]"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD 0U0 0UNSHARD",
			"position 3, 0REDUCE_GRAD: it needs the gradients of unit 0"},
		{zero + "rank 0: 0F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD\nrank 1: 0F0 0B0 0U0 0UNSHARD",
			"rank 1, position 2, 0U0: gradients are not reduced"},
		{zero + "ranks 0-1: 0F0 0STORE_F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD",
			"position 2, 0B0: it needs the input of block 0 for micro-batch 0"},
		{zero + "ranks 0-1: 0F0 0B0 0STORE_F0 0REDUCE_GRAD 0U0 0UNSHARD",
			"0STORE_F0: nothing uses the input of block 0 for micro-batch 0 in host memory after it"},
		{zero + "ranks 0-1: 0F0 0B0 0R0 0REDUCE_GRAD 0U0 0UNSHARD",
			"0R0: nothing uses the saved activations of block 0"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0FETCH_GRAD 0FETCH_STATE 0U0 0UNSHARD",
			"does not move them back"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0HOST_U0 0FETCH_PARAM 0UNSHARD",
			"position 3, 0HOST_U0: it needs the reduced gradients of unit 0 in host memory"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0 0UNSHARD 0FETCH_PARAM",
			"position 5, 0UNSHARD: it needs the new parameters of unit 0, which is in host memory"},
		{strings.Replace(zero, " shard=data", "", 1) + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0",
			"rank 0 leaves the new parameters of unit 0 in host memory: fetch them"},
		{strings.Replace(zero, "blocks=1", "blocks=1 microbatches=2", 1) + "ranks 0-1: 0F0 0F1 0B0 0REDUCE_GRAD 0B1 " +
			"0STORE_GRAD 0REDUCE_GRAD 0STORE_GRAD 0HOST_U1 0FETCH_PARAM 0UNSHARD",
			"position 5, 0STORE_GRAD: nothing uses the reduced gradients of unit 0 in host memory after it"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0 AVERAGE 0FETCH_PARAM 0UNSHARD",
			"position 5, AVERAGE: it needs the new parameters of unit 0, which is in host memory"},
		{head + "rank 0: 0F0 0F1 0B0 0STORE_GRAD 0B1 0HOST_U1 0FETCH_PARAM\nrank 1: 1F0 1F1 1B0 1B1 1U1",
			"0B1: the gradients of unit 0 are in host memory: store them after this"},
		{"schedule x stages=1 microbatches=2 every=1 weights=stash\nrank 0: 0F0 0B0 0STORE_GRAD 0HOST_U0 " +
			"0FETCH_PARAM 0F1 0B1 0U1",
			`0HOST_U0: with weights "stash"`},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD WAIT_0UNSHARD 0U0 0UNSHARD",
			"WAIT_0UNSHARD: it waits for an operation that has not begun"},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD@own 0U0 0UNSHARD", `axis "own": the plan has no such axis`},
		{zero + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 1U0 0UNSHARD", "unit 1: there are units 0 to 0"},
		{strings.Replace(zero, "groups=0-1", "groups=0|1", 1) + "ranks 0-1: 0F0",
			"a group of 1 ranks, want its size, 2"},
		{strings.Replace(zero, "groups=0-1", "groups=0,0", 1) + "ranks 0-1: 0F0", "rank 0 is in two groups"},
		{strings.Replace(zero, "shard=data", "shard=own", 1) + "ranks 0-1: 0F0", "unit 0 is sharded along"},
		{zero + "ranks 0-2: 0F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD",
			"unit 0 is on ranks 0-2, and along [data] rank 0 gets the gradients of ranks 0-1"},
		{two + "rank 0: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD U0\nrank 1: 0F0 1F0 1B0 0B0 0REDUCE_GRAD " +
			"1REDUCE_GRAD U0",
			"rank 0, position 3, 1REDUCE_GRAD: the other side has 0REDUCE_GRAD (rank 1, position 4) in its place"},
		{two + "rank 0: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD 0AVERAGE U0\nrank 1: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 " +
			"0REDUCE_GRAD U0",
			"rank 0, position 6, 0AVERAGE: the other side has nothing in its place"},
		{two + "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 U0\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0 U0",
			"unit 0 is on ranks 0, and along [data] rank 0"},
	} {
		s, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\nis %v, want %q", c.text, err, c.want)
		}
	}
	plan := func(p Plan, list ...Op) *Plan {
		p.Ranks = [][]Op{list}
		return &p
	}
	one := Plan{Blocks: make([]Block, 1), Micro: 1, Every: 1, Weights: Flush}
	for _, p := range []*Plan{
		{},
		plan(Plan{Micro: 1, Every: 1, Weights: Flush}, Op{Kind: Forward}),
		plan(Plan{Blocks: one.Blocks, Every: 1, Weights: Flush}, Op{Kind: Forward}),
		plan(Plan{Blocks: one.Blocks, Micro: 1, Weights: Flush}, Op{Kind: Forward}),
		plan(Plan{Blocks: one.Blocks, Micro: 1, Every: 1}, Op{Kind: Forward}),
		plan(Plan{Blocks: []Block{{Units: []int{1}}}, Micro: 1, Every: 1, Weights: Flush}, Op{Kind: Forward}),
		plan(Plan{Blocks: one.Blocks, Micro: 1 << 62, Every: 1 << 62, Weights: Flush}, Op{Kind: Forward}),
		plan(one, Op{Kind: 'y'}),
		plan(one, Op{Kind: Forward, What: State}),
		plan(one, Op{Kind: Forward, Block: 1}),
		plan(one, Op{Kind: Forward}, Op{Kind: Backward}, Op{Kind: Update, Unit: -2}),
		plan(one, Op{Kind: Forward}, Op{Kind: Send, What: Activation}, Op{Kind: Backward}),
	} {
		if err := p.Check(); err == nil {
			t.Errorf("%+v: no error", p)
		}
		if len(p.Ranks) > 0 {
			if _, err := p.Flow(0); err == nil {
				t.Errorf("%+v: no error of Flow", p)
			}
		}
	}
}

// TestCopies copies copies of a pipeline whose ranks have units in common: axes join all that have one, once each.
func TestCopies(t *testing.T) {
	p := parsed(t, good[1]).Replicate(1, "shared").Replicate(2, "shards").Replicate(2, "replicas")
	if got, want := fmt.Sprint(p.Units[0].Reduce), "[shared-0-1 shards replicas]"; got != want {
		t.Errorf("a unit is reduced along %s, want %s", got, want)
	}
	if err := p.checkJoined(4); err != nil {
		t.Error(err)
	}
}

// TestAverageWaits: an average waits for parameters that are fetched from the host, since the engine then has them on
// the device.
func TestAverageWaits(t *testing.T) {
	p := parsed(t, "plan x blocks=1\naxis all size=2 groups=0-1\nranks 0-1: 0F0 0B0 0STORE_GRAD 0HOST_U0 "+
		"0FETCH_PARAM AVERAGE")
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	flow, err := p.Flow(0)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 5, 5, 5, 6}; !slices.Equal(flow.Done, want) || !slices.Equal(flow.After[5], []int{4}) {
		t.Errorf("done at %v, after %v: want %v, and the average after the fetch", flow.Done, flow.After, want)
	}
}
