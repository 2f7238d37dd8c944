// A minimal router: the URL determines the content, and links do not reload the page.
const view = document.getElementById("view");

function show(path) {
    view.textContent = path === "/" ? "This is the start." : `You are looking at ${path}.`;
}

document.addEventListener("click", (event) => {
    const link = event.target.closest("nav a");
    if (link) {
        event.preventDefault();
        history.pushState({}, "", link.pathname);
        show(link.pathname);
    }
});

addEventListener("popstate", () => show(location.pathname));
show(location.pathname);
