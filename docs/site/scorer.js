// Ranks the results of the site's search: pages for users before pages for contributors.
// Sphinx's defaults, and `score`.
"use strict";

const FOR_CONTRIBUTORS = /^(docs\/(adr\/|contributing-|simulator|soak|architecture)|bench\/|changelog\.d\/|CHANGELOG|CONTRIBUTING|README)/;

var Scorer = {
  // The page of all help texts contains nearly every word.
  score: (result) => result[4] - (FOR_CONTRIBUTORS.test(result[0]) ? 20 : result[0] === "docs/reference/commands" ? 3 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
