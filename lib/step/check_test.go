package step

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
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
	"schedule dualpipe stages=2\nrank 0: 0F0 1F2 0F1 &1B2 1F3 &0B0 1B3 0I1 0W1 0U3 1U3\nrank 1: 0F2 1F0 0F3 1B0 1F1 " +
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
		q := must.Get(p.WithMessages())(t)
		parsed(t, q.String())
		if err := q.Check(); err != nil {
			t.Errorf("%v%v", q, err)
		}
	}
}

// TestCheckRandom compares Check with a second checker, on random plans and on random changes of them.
func TestCheckRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	counts := map[Weights]map[bool]int{Flush: {}, Stash: {}, Vertical: {}, Double: {}}
	for range 6000 {
		p := randomPlan(random)
		pairUp(random, p)
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
		head    = "schedule x stages=2 microbatches=2\n"
		sharded = "plan x blocks=1\naxis data size=2 groups=0-1\nunit 0 reduce=data shard=data\n"
		two     = "plan x blocks=2\naxis data size=2 groups=0-1\nunits 0-1 reduce=data\n"
		first   = "0F0 0F1 0B0 0B1 0U1"
		second  = "1F0 1F1 1B0 1B1 1U1"
	)
	pipe := func(a, b string) string { return head + "rank 0: " + a + "\nrank 1: " + b }
	zero := func(list string) string { return sharded + "ranks 0-1: " + list }
	for _, c := range []struct{ text, want string }{
		{"schedule x stages=2 microbatches=2", "no ranks"},
		{head + "rank 0: 0F0", "1 operations are too few for 2 blocks and 2 micro-batches"},
		{pipe(first, "1F0 1F1 1B0 2B1 1U1"), "rank 1, position 3, 2B1: block 2: the model has blocks 0 to 1"},
		{pipe(first, "1F0 1F2 1B0 1B1 1U1"), "micro-batch 2: there are micro-batches 0 to 1"},
		{pipe(first, "1F0 1B0 1B1 1U1"),
			"rank 1, position 2, 1B1: the rank has no forward pass of the micro-batch before it"},
		{pipe(first, "1F0 1B0 1U1"), "block 1 has no forward pass for micro-batch 1: add 1F1"},
		{pipe(first, "1F0 1F1 1B0 1U1"), "block 1 has no backward for micro-batch 1: add 1B1 to rank 1"},
		{pipe(first, "1F0 1F1 1B0 1I1 1U1"), "block 1 has no weight gradient for micro-batch 1: add 1W1"},
		{pipe("0F0 0F1 0F0 0B0 0B1 0U1", second), "position 2, 0F0: the rank has done that already"},
		{pipe(first, "1F0 1F1 1B0 1I0 1B1 1U1"), "1I0: the rank has done that already: remove one; use B, or I and W"},
		{pipe(first, "1F0 1F1 1W0 1I0 1B1 1U1"), "1W0: the rank has no input gradient of the micro-batch before it"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1U1\nrank 2: 1B1 1U1",
			"block 1 has no backward for micro-batch 1: add 1B1 to rank 1"},
		{head + "rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1 0U1 1U1",
			"1B0: the block's gradient for micro-batch 1 came before"},
		{pipe("0F0 0F1 0B0 0U1 0B1", second), "0B1: the update of unit 0 that needs its gradient came before"},
		{pipe("0F0 0F1 0B0 0B1", second), "rank 0 has no update 0U1"},
		{pipe("0F0 0F1 0B0 0B1 0U0", second), "0U0: the next update of the unit is 0U1"},
		{pipe("0F0 0F1 0B0 0B1 0U1 0U1", second), "0U1: unit 0 has had its last update"},
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
		{pipe("0F0 0B0 0F1 0B1 0U1", second), "deadlock"},
		{pipe("0F0 0F1 &0B0 0B1 0U1", second), "deadlock: rank 0 is at 0F1 and waits for 1SEND_B0 of rank 1; rank 1 is at " +
			"1F1 and waits for 0SEND_F1 of rank 0"}, // which could run one after the other
		{pipe(first, "1F0 &1F1 1B0 1B1 1U1"), "1, &1F1: only a backward pass, or its recomputation, can be paired"},
		{pipe(first, "1F0 1F1 1B0 &1B1 1U1"), "3, &1B1: it is paired, and no forward passes are before it"},
		{pipe(first, "1F0 &1B0 1F1 1B1 1U1"), "&1B0: it is paired with forward passes of the same micro-batch"},
		{"schedule x stages=1 microbatches=2 every=1 weights=double\nrank 0: 0F0 0F1 &0B0 0U0 0B1 0U1",
			`&0B0: with weights "double", there may be updates between passes`},
		{zero("0UNSHARD 0F0 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD 0U0"),
			"position 2, 0UNSHARD: the rank has gathered them already"},
		{zero("0UNSHARD 0F0 0RESHARD 0B0 0REDUCE_GRAD 0U0"),
			"rank 0, position 3, 0B0: it needs the gathered parameters of unit 0, which the rank does not have"},
		{zero("0UNSHARD 0F0 0B0 0REDUCE_GRAD 0RESHARD 0RESHARD 0U0"),
			"position 5, 0RESHARD: it needs the gathered parameters"},
		{zero("0UNSHARD 0F0 0B0 0REDUCE_GRAD 0U0"),
			"position 0, 0UNSHARD: the rank has gathered them already: free them at the end"},
		{zero("0F0 0B0 0REDUCE_GRAD 0U0"),
			"ends with gathered parameters of unit 0 from before its update: gather them after"},
		{zero("0F0 0B0 0U0 0UNSHARD"), "position 2, 0U0: gradients are not reduced along all of [data]"},
		{zero("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD 0U0 0UNSHARD"),
			"position 3, 0REDUCE_GRAD: it needs the gradients of unit 0"},
		{sharded + "rank 0: 0F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD\nrank 1: 0F0 0B0 0U0 0UNSHARD",
			"rank 1, position 2, 0U0: gradients are not reduced"},
		{zero("0F0 0STORE_F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD"),
			"position 2, 0B0: it needs the input of block 0 for micro-batch 0"},
		{zero("0F0 0B0 0STORE_F0 0REDUCE_GRAD 0U0 0UNSHARD"),
			"0STORE_F0: nothing uses the input of block 0 for micro-batch 0 in host memory after it"},
		{zero("0F0 0B0 0R0 0REDUCE_GRAD 0U0 0UNSHARD"), "0R0: nothing uses the saved activations of block 0"},
		{zero("0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0FETCH_GRAD 0FETCH_STATE 0U0 0UNSHARD"), "does not move them back"},
		{zero("0F0 0B0 0REDUCE_GRAD 0HOST_U0 0FETCH_PARAM 0UNSHARD"),
			"position 3, 0HOST_U0: it needs the reduced gradients of unit 0 in host memory"},
		{zero("0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0 0UNSHARD 0FETCH_PARAM"),
			"position 5, 0UNSHARD: it needs the new parameters of unit 0, which is in host memory"},
		{strings.Replace(sharded, " shard=data", "", 1) + "ranks 0-1: 0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0",
			"rank 0 leaves the new parameters of unit 0 in host memory: fetch them"},
		{strings.Replace(sharded, "blocks=1", "blocks=1 microbatches=2", 1) + "ranks 0-1: 0F0 0F1 0B0 0REDUCE_GRAD " +
			"0B1 0STORE_GRAD 0REDUCE_GRAD 0STORE_GRAD 0HOST_U1 0FETCH_PARAM 0UNSHARD",
			"position 5, 0STORE_GRAD: nothing uses the reduced gradients of unit 0 in host memory after it"},
		{zero("0F0 0B0 0REDUCE_GRAD 0STORE_GRAD 0HOST_U0 AVERAGE 0FETCH_PARAM 0UNSHARD"),
			"position 5, AVERAGE: it needs the new parameters of unit 0, which is in host memory"},
		{pipe("0F0 0F1 0B0 0STORE_GRAD 0B1 0HOST_U1 0FETCH_PARAM", second),
			"0B1: the gradients of unit 0 are in host memory: store them after this"},
		{"schedule x stages=1 microbatches=2 every=1 weights=stash\nrank 0: 0F0 0B0 0STORE_GRAD 0HOST_U0 " +
			"0FETCH_PARAM 0F1 0B1 0U1",
			`0HOST_U0: with weights "stash"`},
		{zero("0F0 0B0 0REDUCE_GRAD WAIT_0UNSHARD 0U0 0UNSHARD"),
			"WAIT_0UNSHARD: it waits for an operation that has not begun"},
		{zero("0F0 0B0 0REDUCE_GRAD@own 0U0 0UNSHARD"), `axis "own": the plan has no such axis`},
		{zero("0F0 0B0 0REDUCE_GRAD 1U0 0UNSHARD"), "unit 1: there are units 0 to 0"},
		{strings.Replace(sharded, "groups=0-1", "groups=0|1", 1) + "ranks 0-1: 0F0",
			"a group of 1 ranks, want its size, 2"},
		{strings.Replace(sharded, "groups=0-1", "groups=0,0", 1) + "ranks 0-1: 0F0", "rank 0 is in two groups"},
		{strings.Replace(sharded, "shard=data", "shard=own", 1) + "ranks 0-1: 0F0", "unit 0 is sharded along"},
		{sharded + "ranks 0-2: 0F0 0B0 0REDUCE_GRAD 0U0 0UNSHARD",
			"unit 0 is on ranks 0-2, and along [data] rank 0 gets the gradients of ranks 0-1"},
		{two + "rank 0: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD U0\nrank 1: 0F0 1F0 1B0 0B0 0REDUCE_GRAD " +
			"1REDUCE_GRAD U0",
			"rank 0, position 3, 1REDUCE_GRAD: the other side has 0REDUCE_GRAD (rank 1, position 4) in its place"},
		{two + "rank 0: 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD 0AVERAGE U0\nrank 1: 0F0 1F0 1B0 1REDUCE_GRAD " +
			"0B0 0REDUCE_GRAD U0",
			"rank 0, position 6, 0AVERAGE: the other side has nothing in its place"},
		{two + "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 U0\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0 U0",
			"unit 0 is on ranks 0, and along [data] rank 0"},
	} {
		s := must.Get(Parse(c.text))(t)
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
	must.Do(t, p.Check())
	flow := must.Get(p.Flow(0))(t)
	if want := []int{0, 1, 5, 5, 5, 6}; !slices.Equal(flow.Done, want) || !slices.Equal(flow.After[5], []int{4}) {
		t.Errorf("done at %v, after %v: want %v, and the average after the fetch", flow.Done, flow.After, want)
	}
}

// TestWaits: waiting for sends changes no times, at any costs.
func TestWaits(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	waits := 0
	for range 600 {
		p := randomSchedule(random)
		q := must.Get(p.WithMessages())(t)
		without := *q
		without.Ranks = slices.Clone(q.Ranks)
		for r, list := range q.Ranks {
			without.Ranks[r] = slices.DeleteFunc(slices.Clone(list), func(op Op) bool { return op.Kind == Wait })
			waits += len(list) - len(without.Ranks[r])
		}
		c := randomCosts(random, len(p.Blocks))
		if got, want := simulated(t, q, c), simulated(t, &without, c); !reflect.DeepEqual(got.Spans, want.Spans) {
			t.Fatalf("%v%vwithout waits\n%v", q, got, want)
		}
	}
	if waits < 500 {
		t.Errorf("%d waits: the test needs more", waits)
	}
}

// TestMessages: messages do not change the rest of a list; a Send follows the pass that makes its value, and a Recv
// begins one pass before the pass that needs it, or earlier for a later message of the same rank.
func TestMessages(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 18))
	for range 600 {
		p := randomSchedule(random)
		q := must.Get(p.WithMessages())(t)
		for r, list := range q.Ranks {
			passes := slices.DeleteFunc(slices.Clone(list), func(op Op) bool { return !op.Kind.Pass() })
			if !slices.Equal(passes, p.Ranks[r]) {
				t.Fatalf("%vrank %d becomes\n%v", p, r, q)
			}
			begun := 0 // passes
			for i, op := range list {
				if op.Kind.Pass() {
					begun++
				}
				if op.Kind == Send && !slices.ContainsFunc(list[max(0, i-1):i],
					func(o Op) bool { return o.Micro == op.Micro && o.Block == op.Block }) {
					t.Fatalf("rank %d, position %d: %v is not behind its pass\n%v", r, i, q.Text(op), q)
				}
				if op.Kind == Recv && !slices.ContainsFunc(q.Ranks[r][i:], func(later Op) bool {
					need := firstUse(passes, later)
					return later.Kind == Recv && later.Peer == op.Peer && need >= 0 && need <= begun+1
				}) {
					t.Fatalf("rank %d, position %d: %v is begun early\n%v", r, i, q.Text(op), q)
				}
			}
		}
	}
}

// firstUse returns the pass that needs a received value.
func firstUse(passes []Op, recv Op) int {
	return slices.IndexFunc(passes, func(op Op) bool {
		return op.Block == recv.Block && op.Micro == recv.Micro && (op.Kind == Forward) == (recv.What == Activation) &&
			op.Kind != WeightGrad && op.Kind != Update
	})
}

func TestWithMessagesRefused(t *testing.T) {
	p := parsed(t, small)
	q := must.Get(p.WithMessages())(t)
	if _, err := q.WithMessages(); err == nil || !strings.Contains(err.Error(), "has messages already") {
		t.Errorf("messages twice: %v", err)
	}
	p.Ranks[0] = p.Ranks[0][1:]
	if _, err := p.WithMessages(); err == nil ||
		!strings.Contains(err.Error(), "no forward pass of the micro-batch before it") {
		t.Errorf("a pass less: %v", err)
	}
}

// TestManyOwners has each micro-batch on a rank of its own, and a reduce between all.
func TestManyOwners(t *testing.T) {
	const ranks = 300
	p := &Plan{Name: "data parallel", Micro: ranks, Every: ranks, Weights: Flush}
	p.Blocks, p.Units = Blocks(1)
	for r := range ranks {
		p.Ranks = append(p.Ranks, []Op{{Kind: Forward, Micro: r}, {Kind: Backward, Micro: r},
			{Kind: Update, Micro: ranks - 1}})
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

func TestVersionsErrors(t *testing.T) {
	// Rank 1 has not made the version that rank 0 used for micro-batch 1.
	p := parsed(t, "schedule x stages=2 microbatches=2 every=1 weights=vertical\n"+
		"rank 0: 0F0 0B0 0U0 0F1 0B1 0U1\nrank 1: 1F0 1B0 1F1 1U0 1B1 1U1")
	const want = "rank 1, position 2, 1F1: it needs version 1 of the weights, and the rank has only version 0"
	_, versions := p.Versions()
	_, kept := p.WeightVersions()
	for _, err := range []error{p.Check(), versions, kept} {
		must.Refuse(t, "", err, want)
	}
}

// TestMemoryRandom counts what random plans hold a second time, value by value.
func TestMemoryRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		p := randomPlan(random)
		list := func() (sizes []int64) {
			for range p.Blocks { // and units, which are as many
				sizes = append(sizes, 1+random.Int64N(9))
			}
			return sizes
		}
		s := Sizes{Input: list(), Saved: list(), ForWeightGrad: list(), Full: list(), Sum: list(), Reduced: list()}
		memory, err := p.Memory(s)
		if err != nil {
			t.Fatalf("%v%v", p, err)
		}
		for r, ops := range p.Ranks {
			flow := must.Get(p.Flow(r))(t)
			held := map[Value]int{}
			for u := range flow.Resident {
				held[Value{Held: Full, Unit: u}]++
			}
			for i, op := range ops {
				for _, v := range flow.Makes[i] {
					if !slices.Contains(flow.Unmade[i], v) {
						held[v]++
					}
				}
				var bytes, reduced int64
				for v, n := range held {
					if v.Held == Reduced { // may be in the place of the sum
						reduced += int64(n) * s.of(v)
					} else if !v.Host {
						bytes += int64(n) * s.of(v)
					}
				}
				for j, op := range ops[:i+1] { // one under way may have an array of its own
					if op.Kind == Reduce && flow.Done[j] >= i {
						reduced += s.of(Value{Held: Reduced, Unit: op.Unit})
					}
				}
				if got := memory[r].Levels[i]; got.Total() > bytes+reduced || got.Total() < bytes {
					t.Fatalf("%vrank %d, position %d, %v: %+v are %d bytes, want %d to %d", p, r, i, p.Text(op), got,
						got.Total(), bytes, bytes+reduced)
				}
				for _, v := range flow.Ends[i] {
					if !slices.Contains(flow.Unmade[i], v) {
						held[v]--
					}
				}
			}
		}
	}
}

// TestMemory compares a step of ZeRO-3 with a count by hand.
func TestMemory(t *testing.T) {
	p := parsed(t, good[2])
	s := Sizes{Input: []int64{1}, Saved: []int64{10}, Full: []int64{100}, Sum: []int64{100}, Reduced: []int64{25},
		Resident: []int64{50}, States: []int64{200}}
	memory, err := p.Memory(s)
	must.Do(t, err)
	var gathered []int64
	for _, b := range memory[3].Levels {
		gathered = append(gathered, b.Gathered)
	}
	want := []int64{100, 200, 200, 200, 100, 200, 200, 200, 100, 100, 100, 0, 0}
	if !reflect.DeepEqual(gathered, want) {
		t.Errorf("gathered are %v, want %v", gathered, want)
	}
	if m := memory[0]; m.Peak.Parameters != 100 || m.Peak.States != 400 || m.Levels[0].Activations != 0 ||
		m.Levels[m.At].Total() != m.Total {
		t.Errorf("%+v", m)
	}
	if _, err := p.Memory(Sizes{Saved: []int64{1, 2, 3}}); err == nil ||
		!strings.Contains(err.Error(), "3 values for 2") {
		t.Errorf("three values for two blocks: %v", err)
	}
	traffic, err := p.Traffic(s)
	if want := "map[data:500]"; err != nil || fmt.Sprint(traffic[2]) != want { // three gathers, two reduces
		t.Errorf("%v(%v), want %s", traffic[2], err, want)
	}
}

// TestTraffic counts messages where they are sent, what goes to the host, and of two axes the second by the shard.
func TestTraffic(t *testing.T) {
	p := parsed(t, "plan x blocks=2\naxis data size=2 groups=0-1|2-3\naxis replica size=2 groups=0,2|1,3\naxis own "+
		"size=1\nunits 0-1 reduce=data,replica,own shard=data\n"+
		"ranks 0-3: 0F0 0STORE_F0 1F0 1B0 0FETCH_F0 0B0 0REDUCE_GRAD@data 1REDUCE_GRAD@data 0REDUCE_GRAD@replica "+
		"1REDUCE_GRAD@replica 0REDUCE_GRAD@own 1REDUCE_GRAD@own U0 0UNSHARD 1UNSHARD AVERAGE@replica")
	s := Sizes{Input: []int64{3}, Full: []int64{100}, Sum: []int64{200}, Reduced: []int64{90}, Resident: []int64{7},
		States: []int64{5}}
	traffic, err := p.Traffic(s)
	if want := "map[data:600 host:6 replica:204]"; err != nil || fmt.Sprint(traffic[1]) != want {
		t.Errorf("%v(%v), want %s", traffic, err, want)
	}
	traffic, err = parsed(t, good[0]).Traffic(s)
	if want := "[map[pipe:6] map[pipe:6]]"; err != nil || fmt.Sprint(traffic) != want {
		t.Errorf("%v(%v), want %s", traffic, err, want)
	}
}
