package clientapi

import (
	"encoding/json"
	"io"
	stdlog "log"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.etcd.io/etcd/api/v3/version"
)

// headerTimeout bounds how long a client may take for the header of a request, as in etcd.
const headerTimeout = 5 * time.Minute

func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ErrorLog: stdlog.New(io.Discard, "", 0)}
}

// mux is what is served over HTTP: all of it, or the part for metrics listeners.
func (s *Server) mux(all bool) *http.ServeMux {
	m := http.NewServeMux()
	gatherers := prometheus.Gatherers{s.metrics.registry}
	if s.cfg.Gatherer != nil {
		gatherers = append(gatherers, s.cfg.Gatherer)
	}
	m.Handle("/metrics", promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{}))
	s.addHealth(m)
	if all {
		m.HandleFunc("/version", s.version)
	}
	if all && s.cfg.Pprof {
		m.HandleFunc("/debug/pprof/", pprof.Index)
		m.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		m.HandleFunc("/debug/pprof/profile", pprof.Profile)
		m.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		m.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return m
}

// version answers as etcd of the version whose API braid serves.
func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	if !allowGet(w, r) {
		return
	}
	v := version.Versions{Server: version.Version, Cluster: "not_decided", Storage: "unknown"}
	if c := s.cfg.ClusterVersion(); c != "" {
		v.Cluster, v.Storage = c, c
	}
	b, err := json.Marshal(&v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}

func allowGet(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet {
		return true
	}
	w.Header().Set("Allow", http.MethodGet)
	http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	return false
}
