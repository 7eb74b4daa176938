// Looks and behaviour of the report: everything that the page needs is in it.
#pragma once

namespace switchyard::app {

// Colours c0 to c7 are told apart with any colour vision (after Okabe and Ito, 2008, "Color
// Universal Design"), darker on a light page and lighter on a dark one.
inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --page:#fbfbfa; --ink:#1c1c1a; --soft:#5d5d58; --line:#dcdcd6;
  --card:#ffffff; --accent:0,98,155; --bad:#a33000;
  --c0:#0072b2; --c1:#d98200; --c2:#008a63; --c3:#b3578c; --c4:#4aa3d8; --c5:#c04a00; --c6:#8a7a00;
  --c7:#9a9a94; }
@media (prefers-color-scheme: dark) { :root { --page:#161615; --ink:#ebebe6; --soft:#a2a29b;
  --line:#34342f; --card:#1f1f1d; --accent:90,180,235; --bad:#ff9a6b;
  --c0:#4aa8e0; --c1:#f0ab3c; --c2:#3cc298; --c3:#dd8fbb; --c4:#8fd0f5; --c5:#ee7f45; --c6:#d9cb4a;
  --c7:#77776f; } }
* { box-sizing: border-box; }
body { margin:0 auto; padding:1rem clamp(.75rem,3vw,2rem) 4rem; max-width:64rem; background:var(--page);
  color:var(--ink); font:16px/1.5 system-ui,sans-serif; }
h1 { font-size:1.6rem; line-height:1.2; margin:.2rem 0 .4rem; }
h2 { font-size:1.15rem; margin:2.4rem 0 .3rem; padding-top:.6rem; border-top:1px solid var(--line); }
p, li { max-width:70ch; }
.devices { margin:0; font-weight:600; }
.note, figcaption, .tick, .soft { color:var(--soft); }
.note { margin:.1rem 0 .8rem; font-size:.92rem; }
figure { margin:.8rem 0 1.4rem; padding:.9rem; background:var(--card); border:1px solid var(--line);
  border-radius:.5rem; }
figcaption { font-size:.9rem; margin-bottom:.5rem; overflow-wrap:anywhere; }
svg.chart { display:block; overflow:visible; font:12px system-ui,sans-serif; }
.label, .value { fill:var(--ink); } .tick { fill:var(--soft); font-size:11px; }
.grid { stroke:var(--line); } .whisker { stroke:var(--ink); stroke-width:1.3; }
.span { stroke:var(--card); stroke-width:.7; }
.c0{fill:var(--c0)} .c1{fill:var(--c1)} .c2{fill:var(--c2)} .c3{fill:var(--c3)}
.c4{fill:var(--c4)} .c5{fill:var(--c5)} .c6{fill:var(--c6)} .c7{fill:var(--c7)}
.heat { fill:rgb(var(--accent)); fill-opacity:var(--depth); }
.legend { list-style:none; display:flex; flex-wrap:wrap; gap:.2rem 1rem; margin:.4rem 0; padding:0;
  font-size:.9rem; }
.legend svg { margin-right:.4rem; }
.wide { overflow-x:auto; }
table { border-collapse:collapse; font-size:.9rem; font-variant-numeric:tabular-nums; }
th, td { padding:.28rem .6rem; border-bottom:1px solid var(--line); text-align:left;
  vertical-align:top; }
th { font-weight:600; } td.n, th.n { text-align:right; white-space:nowrap; }
.matrix td { text-align:right; background:rgba(var(--accent),var(--depth,0)); white-space:nowrap; }
.matrix td.none { text-align:center; color:var(--soft); }
.findings { padding-left:1.1rem; } .findings b { color:var(--bad); }
.filter { display:flex; flex-wrap:wrap; gap:.4rem; align-items:center; margin:.6rem 0; }
.filter input { font:inherit; color:inherit; background:var(--card); border:1px solid var(--line);
  border-radius:.3rem; padding:.25rem .5rem; min-width:min(18rem,100%); }
th[data-sort] { cursor:pointer; } th[data-sort]:hover { text-decoration:underline; }
details { margin:.4rem 0; } summary { cursor:pointer; }
.hidden { display:none; }
)css";

// Without it everything is there to read; with it, runs can be filtered and the table sorted.
inline constexpr const char* kReportScript = R"js(
"use strict";
(function () {
  const filter = document.getElementById("filter");
  filter.parentElement.classList.remove("hidden");
  filter.addEventListener("input", function () {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    document.querySelectorAll("[data-run]").forEach(function (element) {
      const name = element.dataset.run.toLowerCase();
      element.classList.toggle("hidden", !words.every(function (w) { return name.includes(w); }));
    });
  });
  document.querySelectorAll("th[data-sort]").forEach(function (head) {
    let direction = -1;
    head.addEventListener("click", function () {
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const key = function (row) {
        const text = row.cells[column].dataset.value || row.cells[column].textContent;
        const number = Number(text);
        return Number.isNaN(number) || text === "" ? text : number;
      };
      const rows = Array.from(body.rows).sort(function (a, b) {
        const x = key(a), y = key(b);
        return direction * (x < y ? -1 : x > y ? 1 : 0);
      });
      direction = -direction;
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
})();
)js";

}  // namespace switchyard::app
