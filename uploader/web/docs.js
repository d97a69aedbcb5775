SwaggerUIBundle({ url: new URL("../openapi.json", document.currentScript.src).href, dom_id: "#swagger-ui", deepLinking: true, persistAuthorization: false });
