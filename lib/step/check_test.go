package step

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// parsed reads a plan, and holds it to being written and read again as it is.
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
	"schedule dualpipe stages=2\nrank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1 0U3 1U3\nrank 1: 0F2 1F0 0F3 1B0 1F1 0B2 1B1 0I3 0W3 0U3 1U3",
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

// TestCheckWaits: ranks that wait for each other are named.
func TestCheckWaits(t *testing.T) {
	p := parsed(t, "schedule x stages=2\nrank 0: 0F0 0B0 0F1 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1")
	const want = "rank 0 is at 0B0 and waits for 1SEND_B0 of rank 1; rank 1 is at 1F1 and waits for 0SEND_F1 of rank 0"
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestCheckRandom: random plans can be carried out, as two checkers say, and what a change makes of them is refused just
// where a second checker refuses it.
func TestCheckRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	good, bad := 0, 0
	for range 6000 {
		p := randomPlan(random)
		if err := p.Check(); err != nil || !dumbValid(p) {
			t.Fatalf("%vCheck says %v, the second checker %v", p, err, dumbValid(p))
		}
		before := p.String()
		for range 1 + random.IntN(2) {
			mutate(random, p)
		}
		err, want := p.Check(), dumbValid(p)
		if (err == nil) != want {
			t.Fatalf("%sbecomes\n%vCheck says %v, the second checker %v", before, p, err, want)
		}
		if err == nil {
			good++
		} else {
			bad++
		}
	}
	if good < 500 || bad < 500 {
		t.Errorf("%d plans were good and %d bad: the test needs both", good, bad)
	}
}
