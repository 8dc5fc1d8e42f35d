package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestSplitsAreInOrder(t *testing.T) {
	if len(splits) != 15 || !slices.IsSorted(splits) {
		t.Fatalf("%d splits: %q", len(splits), splits)
	}
}

func TestChoose(t *testing.T) {
	table := "suite\ttest\tarea\tapplicable\treason\tresult\tseconds\tlist\n" +
		"common\tTestKV\tkv\tyes\t\tpass\t1\topen\ncommon\tTestTxn\ttxn\tpartial\t\tpass\t1\topen\ncommon\tTestAuth\tauth\tyes\t\tpass\t1\topen\n" +
		"common\tTestFile\tkv\tno\tbbolt\tfail\t1\topen\nintegration/clientv3\tTestKV\tkv\tyes\t\tpass\t1\topen\n"
	if got := choose(table, "common", []string{"kv", "txn"}); !slices.Equal(got, []string{"TestKV", "TestTxn"}) {
		t.Fatal(got)
	}
	if got := choose(table, "integration", []string{"kv"}); !slices.Equal(got, []string{"TestKV"}) {
		t.Fatal(got)
	}
}

func TestCommand(t *testing.T) {
	if err := command(t.Context(), nil, "true"); err != nil {
		t.Error(err)
	}
	if err := command(t.Context(), nil, "false"); !errors.Is(err, errFailed) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := command(ctx, nil, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestNoKit(t *testing.T) {
	if err := run(t.Context(), []string{"--kit", t.TempDir() + "/none"}); err != nil {
		t.Error(err)
	}
}
