"use strict";
// Shows the claims that have all the words and the verdict; without this script all are shown.
(() => {
  const form = document.getElementById("filters");
  const claims = [...document.querySelectorAll("article")];
  const texts = new Map(claims.map((claim) => [claim, claim.textContent.toLowerCase()]));

  function filter() {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = form.elements.status.value;
    let shown = 0;
    for (const claim of claims) {
      claim.hidden = (status && claim.dataset.status !== status) || !words.every((word) => texts.get(claim).includes(word));
      shown += claim.hidden ? 0 : 1;
    }
    for (const part of document.querySelectorAll("section")) part.hidden = !part.querySelector("article:not([hidden])");
    document.getElementById("count").textContent = `${shown} of ${claims.length} shown`;
  }

  // A link to a claim opens it, and shows all claims again where it was filtered out.
  function follow() {
    const claim = document.getElementById(location.hash.slice(1));
    if (claim?.localName !== "article") return;
    claim.querySelector("details").open = true;
    if (claim.closest("[hidden]")) {
      form.reset();
      filter();
    }
    claim.scrollIntoView();
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  filter();
  follow();
})();
