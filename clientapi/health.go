package clientapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Health is what the health checks ask.
type Health interface {
	// HasLeader tells whether the cluster's revision can advance, as far as this node knows.
	HasLeader() bool
	// IsLearner tells whether this member has no vote.
	IsLearner() bool
	// Alarms are those in force.
	Alarms() []pb.AlarmType
	// ProbeRead does what a Range for one key, without its value, does; serializable or linearizable.
	ProbeRead(ctx context.Context, serializable bool) error
}

// check is one of the checks behind /livez and /readyz.
type check struct {
	name string
	run  func(context.Context) error
}

// addHealth adds /health, and /livez and /readyz with a path for each of their checks.
func (s *Server) addHealth(m *http.ServeMux) {
	h := s.cfg.Health
	read := func(serializable bool) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
			defer cancel()
			return h.ProbeRead(ctx, serializable)
		}
	}
	serializable := check{"serializable_read", read(true)}
	m.HandleFunc("/health", s.serveHealth)
	s.addChecks(m, "livez", []check{serializable})
	s.addChecks(m, "readyz", []check{
		{"data_corruption", func(context.Context) error {
			if slices.Contains(h.Alarms(), pb.AlarmType_CORRUPT) {
				return fmt.Errorf("alarm activated: %s", pb.AlarmType_CORRUPT)
			}
			return nil
		}},
		serializable,
		{"linearizable_read", read(false)},
		{"non_learner", func(context.Context) error {
			if h.IsLearner() {
				return errors.New("not supported for learner")
			}
			return nil
		}},
	})
}

func (s *Server) addChecks(m *http.ServeMux, kind string, checks []check) {
	m.HandleFunc("/"+kind, func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		var unknown []string
		for _, x := range excluded {
			if x != "" && !slices.ContainsFunc(checks, func(c check) bool { return c.name == x }) {
				unknown = append(unknown, x)
			}
		}
		if len(unknown) > 0 {
			s.log.Warn("some health checks cannot be excluded", "missing-health-checks", unknown)
		}
		s.runChecks(w, r, kind, slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return slices.Contains(excluded, c.name) }))
	})
	for _, c := range checks {
		m.HandleFunc("/"+kind+"/"+c.name, func(w http.ResponseWriter, r *http.Request) {
			s.runChecks(w, r, kind, []check{c})
		})
	}
}

// runChecks answers 200 if all checks pass, else 503 with what failed.
func (s *Server) runChecks(w http.ResponseWriter, r *http.Request, kind string, checks []check) {
	if !allowGet(w, r) {
		return
	}
	var report strings.Builder
	healthy := true
	for _, c := range checks {
		err := c.run(r.Context())
		if err != nil {
			healthy = false
			fmt.Fprintf(&report, "[-]%s failed: %v\n", c.name, err)
		} else {
			fmt.Fprintf(&report, "[+]%s ok\n", c.name)
		}
		s.metrics.checked(kind, c.name, err == nil)
	}
	if !healthy {
		http.Error(w, report.String(), http.StatusServiceUnavailable)
		s.log.Warn("health check failed", "path", r.URL.Path, "reason", report.String())
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.URL.Query().Has("verbose") {
		fmt.Fprint(w, report.String())
	}
	fmt.Fprint(w, "ok\n")
}

// healthReport is the body of /health.
type healthReport struct {
	Health string `json:"health"`
	Reason string `json:"reason"`
}

func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if !allowGet(w, r) {
		return
	}
	query := r.URL.Query()
	reason := s.unhealthy(r.Context(), query["exclude"], query.Get("serializable") == "true")
	report := healthReport{Health: "true", Reason: reason}
	if reason != "" {
		report.Health = "false"
	}
	body, err := json.Marshal(report)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.metrics.health(reason == "")
	if reason != "" {
		http.Error(w, string(body), http.StatusServiceUnavailable)
		s.log.Warn("/health error", "output", string(body), "status-code", http.StatusServiceUnavailable)
		return
	}
	w.Write(body)
}

// unhealthy says why the member is not healthy, in etcd's words.
func (s *Server) unhealthy(ctx context.Context, excluded []string, serializable bool) string {
	h := s.cfg.Health
	for _, a := range h.Alarms() {
		if slices.Contains(excluded, a.String()) {
			continue
		}
		switch a {
		case pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT:
			return "ALARM " + a.String()
		}
		return "ALARM UNKNOWN"
	}
	if !serializable && !h.HasLeader() {
		return "RAFT NO LEADER"
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	if err := h.ProbeRead(ctx, serializable); err != nil {
		return fmt.Sprintf("RANGE ERROR:%s", err)
	}
	return ""
}
