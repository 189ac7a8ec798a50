// Ranks the results of the site's search: pages for users before pages for contributors, and answers before mentions.
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

// Sphinx finds an index entry by its exact words, and a page only if it has every word of the query. Here an entry
// also answers with its words in another order, and a query without an answer is searched word by word.
const FILLERS = new Set(["can", "get", "see", "use"]);  // next to Sphinx's stop words
const perform = Search._performSearch;

Search._performSearch = (query, asked, excluded, ...rest) => {
  const filled = [...asked].filter((term) => !FILLERS.has(term));
  const terms = filled.length ? new Set(filled) : asked;
  const answers = entriesWith(terms);
  const places = new Set(answers.map((answer) => answer[0] + answer[2]));
  const others = perform(query, terms, excluded, ...rest).filter((result) => !places.has(result[0] + result[2]));
  const results = [...others, ...answers].sort((a, b) => a[4] - b[4]);
  return results.length ? results : anyWord(terms, excluded);
};

/** The pages of index entries that consist of words of the query, or have all of them. */
function entriesWith(terms) {
  const { docnames, filenames, titles, indexentries } = Search._index, stemmer = new Stemmer(), best = new Map();
  for (const [entry, found] of Object.entries(indexentries)) {
    const words = new Set(splitQuery(entry.toLowerCase()).filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word)));
    const common = [...words].filter((word) => terms.has(word)).length, share = common / (words.size + terms.size - common);
    if (share <= 0.5 || common < Math.min(words.size, terms.size)) continue;
    for (const [file, id, isMain] of found) {
      const anchor = id ? `#${id}` : "", key = docnames[file] + anchor, score = 100 * share;
      if (!isMain || (best.get(key)?.[4] ?? 0) >= score) continue;
      best.set(key, [docnames[file], titles[file], anchor, null, score, filenames[file], SearchResultKind.index]);
    }
  }
  return [...best.values()];
}

/** The pages with any of the words, those with most of them last, which is first on the page. */
function anyWord(terms, excluded) {
  const best = new Map();
  for (const term of terms) {
    for (const result of Search.performTermsSearch(new Set([term]), excluded)) {
      result[4] = 10 + Scorer.score(result) + (best.get(result[0])?.[4] ?? 0);
      best.set(result[0], result);
    }
  }
  return [...best.values()].sort((a, b) => a[4] - b[4]).slice(-20);
}
