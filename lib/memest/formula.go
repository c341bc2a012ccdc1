package memest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"strings"
)

// vars are the values of the names in formulas.
type vars map[string]int64

// computed is the value of a formula, and the values of its names as a text.
type computed struct {
	bytes  int64
	values string
}

// compute evaluates the formula that a ledger prints, so that the two cannot differ: exact arithmetic with +, -, *, /,
// parentheses, integers, names, and ceil(x). It rounds the result up to an integer, and returns an error for an invalid
// formula and on overflow of an int64.
func (v vars) compute(formula string) (computed, error) {
	expr, err := parser.ParseExpr(formula)
	if err != nil {
		return computed{}, fmt.Errorf("formula %q: %w", formula, err)
	}
	x, err := v.eval(expr)
	if err != nil {
		return computed{}, fmt.Errorf("formula %q: %w", formula, err)
	}
	n, values := roundUp(x), v.of(expr)
	if !n.IsInt64() {
		return computed{}, fmt.Errorf("%s bytes overflow an int64, with %s: make the model, the batch or "+
			"the sequence smaller", formula, values)
	}
	return computed{n.Int64(), values}, nil
}

// sheet computes each formula once.
type sheet struct {
	vars
	known map[string]computed
}

func newSheet(v vars) *sheet { return &sheet{v, map[string]computed{}} }

func (s *sheet) compute(formula string) (computed, error) {
	c, ok := s.known[formula]
	if ok {
		return c, nil
	}
	c, err := s.vars.compute(formula)
	if err == nil {
		s.known[formula] = c
	}
	return c, err
}

func (v vars) eval(e ast.Expr) (*big.Rat, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if x, ok := new(big.Rat).SetString(e.Value); ok && e.Kind == token.INT {
			return x, nil
		}
	case *ast.Ident:
		if x, ok := v[e.Name]; ok {
			return new(big.Rat).SetInt64(x), nil
		}
		return nil, fmt.Errorf("unknown name %s", e.Name)
	case *ast.ParenExpr:
		return v.eval(e.X)
	case *ast.CallExpr:
		if name, ok := e.Fun.(*ast.Ident); ok && name.Name == "ceil" && len(e.Args) == 1 {
			x, err := v.eval(e.Args[0])
			if err != nil {
				return nil, err
			}
			return new(big.Rat).SetInt(roundUp(x)), nil
		}
	case *ast.BinaryExpr:
		x, err := v.eval(e.X)
		if err != nil {
			return nil, err
		}
		y, err := v.eval(e.Y)
		if err != nil {
			return nil, err
		}
		switch e.Op {
		case token.ADD:
			return x.Add(x, y), nil
		case token.SUB:
			return x.Sub(x, y), nil
		case token.MUL:
			return x.Mul(x, y), nil
		case token.QUO:
			if y.Sign() == 0 {
				return nil, fmt.Errorf("division by zero")
			}
			return x.Quo(x, y), nil
		}
	}
	return nil, fmt.Errorf("only +, -, *, /, parentheses, integers, names and ceil are supported")
}

func roundUp(x *big.Rat) *big.Int {
	n := new(big.Int).Add(x.Num(), x.Denom())
	return n.Sub(n, big.NewInt(1)).Div(n, x.Denom())
}

// of lists the values of the names in an expression, as in "b=2, s=4096".
func (v vars) of(e ast.Expr) string {
	var found []string
	seen := map[string]bool{}
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !seen[id.Name] {
			if x, ok := v[id.Name]; ok {
				seen[id.Name] = true
				found = append(found, fmt.Sprintf("%s=%d", id.Name, x))
			}
		}
		return true
	})
	return strings.Join(found, ", ")
}
